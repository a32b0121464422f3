/* Prints all words and rates, to be compared with those of another library. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	for (int number = -1; number < 10; number++)
		printf("node %d %s\n", number, ibv_node_type_str(number));
	for (int number = 0; number < 8; number++)
		printf("port %d %s\n", number, ibv_port_state_str(number));
	for (int number = 0; number < 22; number++)
		printf("event %d %s\n", number, ibv_event_type_str(number));
	for (int number = 0; number < 26; number++)
		printf("status %d %s\n", number, ibv_wc_status_str(number));
	for (int number = 0; number < 30; number++)
		printf("rate %d %d %d\n", number, ibv_rate_to_mult(number), ibv_rate_to_mbps(number));
	for (int number = 0; number < 500; number++)
		printf("mult %d %d\n", number, mult_to_ibv_rate(number));
	int last = -1;
	for (int number = 0; number < 1300000; number++) {
		int rate = mbps_to_ibv_rate(number);
		if (rate != last)
			printf("mbps %d %d\n", number, rate);
		last = rate;
	}
	return 0;
}

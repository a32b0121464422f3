/* Children that are forked, of which one breaks a rule of Thunderbolt, and a parent that breaks it before and after. */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *buffer = aligned_alloc(65536, 65536);
	CHECK(pd && buffer);
	CHECK(ibv_reg_mr(pd, buffer + 1, 4096, IBV_ACCESS_LOCAL_WRITE));
	for (int child = 0; child < 3; child++) {
		pid_t process = fork();
		CHECK(process >= 0);
		if (process == 0) {
			/* Refused or not, it is told. */
			if (child == 1)
				(void)ibv_reg_mr(pd, buffer + 2, 4096, IBV_ACCESS_LOCAL_WRITE);
			exit(0);
		}
		int status;
		SAME(waitpid(process, &status, 0), process);
		SAME(status, 0);
	}
	CHECK(ibv_reg_mr(pd, buffer + 3, 4096, IBV_ACCESS_LOCAL_WRITE));
	return 0;
}

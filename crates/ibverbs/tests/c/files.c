/* Device files, as UCX looks for them. */
#include "common.h"

#include <sys/stat.h>

int main(void)
{
	struct stat stat_;
	SAME(stat("/dev/infiniband/uverbs0", &stat_), 0);
	CHECK(S_ISCHR(stat_.st_mode));
	SAME(access("/dev/infiniband/uverbs1", R_OK | W_OK), 0);
	/* There are two devices. */
	SAME(access("/dev/infiniband/uverbs2", R_OK), -1);
	SAME(errno, ENOENT);
	SAME(stat("/dev/infiniband/uverbs2", &stat_), -1);
	SAME(access("/dev/infiniband/uverbs01", R_OK), -1);
	/* Other files are what they are. */
	SAME(stat("/proc/self/exe", &stat_), 0);
	CHECK(S_ISREG(stat_.st_mode));
	SAME(access("/proc/self/exe", X_OK), 0);
	SAME(access("/nowhere", R_OK), -1);
	SAME(errno, ENOENT);
	return 0;
}

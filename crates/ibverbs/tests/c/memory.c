/* Protection domains and memory regions, and the numbers of their errors. */
#include "common.h"

#include <sys/mman.h>

#define FAILS(call, number)                                                                                         \
	do {                                                                                                        \
		errno = 0;                                                                                          \
		CHECK((call) == NULL);                                                                              \
		SAME(errno, number);                                                                                \
	} while (0)

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	CHECK(pd && other && pd != other);
	CHECK(pd->context == context && pd->handle != other->handle);

	/* Any bytes, page-aligned or not, as often as one likes. */
	char *bytes = malloc(100000);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes + 3, 70001, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK(mr->context == context && mr->pd == pd && mr->addr == bytes + 3);
	SAME(mr->length, 70001);
	struct ibv_mr *again = ibv_reg_mr(pd, bytes + 3, 70001, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(again && again->lkey != mr->lkey && again->rkey != mr->rkey);
	SAME(ibv_dereg_mr(again), 0);

	/* The header's ways around: a flag that may be ignored, and a hint. */
	again = ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB);
	CHECK(again);
	SAME(ibv_dereg_mr(again), 0);
	int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	again = (ibv_reg_mr)(pd, bytes, 4096, flags);
	CHECK(again);
	SAME(ibv_dereg_mr(again), 0);
	FAILS(ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);

	/* Other addresses: for requests of this process alone. */
	again = ibv_reg_mr_iova(pd, bytes, 4096, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
	CHECK(again && again->addr == bytes);
	SAME(ibv_dereg_mr(again), 0);
	FAILS(ibv_reg_mr_iova(pd, bytes, 4096, 1 << 20, IBV_ACCESS_REMOTE_READ), EOPNOTSUPP);
	again = ibv_reg_mr_iova(pd, bytes, 4096, (uintptr_t)bytes, IBV_ACCESS_REMOTE_READ);
	CHECK(again);
	SAME(ibv_dereg_mr(again), 0);

	/* Rights that make no sense, and memory that is not there. */
	FAILS(ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	FAILS(ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	FAILS(ibv_reg_mr(pd, bytes, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	FAILS(ibv_reg_mr(pd, bytes, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	FAILS(ibv_reg_mr(NULL, bytes, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	FAILS(ibv_reg_mr(pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	CHECK(munmap(pages + 2 * page, page) == 0);
	FAILS(ibv_reg_mr(pd, pages + page, 2 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	CHECK(mprotect(pages + page, page, PROT_READ) == 0);
	FAILS(ibv_reg_mr(pd, pages, 2 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	FAILS(ibv_reg_mr(pd, "constant", 8, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	again = ibv_reg_mr(pd, pages, 2 * page, IBV_ACCESS_REMOTE_READ);
	CHECK(again);
	SAME(ibv_dereg_mr(again), 0);

	/* A domain that is used stays. */
	SAME(ibv_dealloc_pd(pd), EBUSY);

	/* Registered anew: other memory, another domain, other rights. */
	uint32_t before = mr->lkey;
	SAME(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	SAME(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), IBV_REREG_MR_ERR_CMD);
	CHECK(mr->lkey == before && mr->pd == pd && mr->length == 70001);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, pages, page, 0), 0);
	CHECK(mr->addr == pages && mr->length == (size_t)page && mr->pd == pd);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0, 0), 0);
	CHECK(mr->pd == other && mr->addr == pages);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_dealloc_pd(other), EBUSY);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dealloc_pd(other), 0);

	/* What is not there is refused. */
	pd = ibv_alloc_pd(context);
	FAILS(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
	FAILS(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	FAILS(ibv_alloc_null_mr(pd), EOPNOTSUPP);
	struct ibv_sge sge = { (uintptr_t)bytes, 4096, 0 };
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EOPNOTSUPP);
	struct ibv_td_init_attr td = { 0 };
	FAILS(ibv_alloc_td(context, &td), EOPNOTSUPP);
	struct ibv_parent_domain_init_attr parent = { .pd = pd };
	FAILS(ibv_alloc_parent_domain(context, &parent), EOPNOTSUPP);
	struct ibv_xrcd_init_attr xrcd = { .fd = -1 };
	FAILS(ibv_open_xrcd(context, &xrcd), EOPNOTSUPP);
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	FAILS(ibv_alloc_dm(context, &dm), EOPNOTSUPP);
	struct ibv_counters_init_attr counters = { 0 };
	FAILS(ibv_create_counters(context, &counters), EOPNOTSUPP);
	struct ibv_wq_init_attr wq = { .pd = pd };
	FAILS(ibv_create_wq(context, &wq), EOPNOTSUPP);
	FAILS(ibv_import_device(0), EOPNOTSUPP);
	FAILS(ibv_import_pd(context, 0), EOPNOTSUPP);
	FAILS(ibv_import_mr(pd, 0), EOPNOTSUPP);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(context), 0);
	free(bytes);
	return 0;
}

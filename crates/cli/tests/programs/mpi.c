// An MPI program that checks every element that it gets.
//
//   mpicc -O2 -o mpi mpi.c && mpirun -n 2 ./mpi
//
// Sums of whole numbers are the same in any order, so that what each rank must see is known.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks, wrong;

static void check(const char *what, long count, long at, double seen, double expected) {
  if (seen != expected && wrong++ < 5) {
    printf("rank %d: %s of %ld: element %ld is %g, and not %g\n", rank, what, count, at, seen, expected);
  }
}

static double value(int of, long at, int round) {
  return (double)((of + 1) * ((at + round) % 1000));
}

static void all_reduce(long count, int round) {
  double *in = malloc((size_t)count * sizeof *in), *out = malloc((size_t)count * sizeof *out);
  for (long at = 0; at < count; at++) in[at] = value(rank, at, round);
  MPI_Allreduce(in, out, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  double all = ranks * (ranks + 1) / 2.0;
  for (long at = 0; at < count; at++) check("all-reduce", count, at, out[at], all * (double)((at + round) % 1000));
  free(in);
  free(out);
}

static void all_to_all(long count, int round) {
  double *in = malloc((size_t)(count * ranks) * sizeof *in), *out = malloc((size_t)(count * ranks) * sizeof *out);
  for (long at = 0; at < count * ranks; at++) in[at] = value(rank, at, round);
  MPI_Alltoall(in, (int)count, MPI_DOUBLE, out, (int)count, MPI_DOUBLE, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; from++) {
    for (long at = 0; at < count; at++) {
      check("all-to-all", count, at, out[from * count + at], value(from, rank * count + at, round));
    }
  }
  free(in);
  free(out);
}

// Each rank puts into its neighbour's memory.
static void put(long count, int round) {
  double *memory, *in = malloc((size_t)count * sizeof *in);
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)(count * (long)sizeof *memory), sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  for (long at = 0; at < count; at++) in[at] = value(rank, at, round);
  MPI_Win_fence(0, window);
  MPI_Put(in, (int)count, MPI_DOUBLE, (rank + 1) % ranks, 0, (int)count, MPI_DOUBLE, window);
  MPI_Win_fence(0, window);
  for (long at = 0; at < count; at++) check("put", count, at, memory[at], value((rank + ranks - 1) % ranks, at, round));
  MPI_Win_free(&window);
  free(in);
}

int main(int argc, char **argv) {
  static const long counts[] = {1, 7, 100, 1024, 5000, 131072, 524288};
  MPI_Init(&argc, &argv);
  int rounds = argc > 1 ? atoi(argv[1]) : 3;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int round = 0; round < rounds; round++) {
    for (unsigned at = 0; at < sizeof counts / sizeof *counts; at++) {
      all_reduce(counts[at], round);
      all_to_all(counts[at] / ranks + 1, round);
      put(counts[at], round);
    }
  }
  int all_wrong = 0;
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, %d wrong\n", ranks, all_wrong);
  MPI_Finalize();
  return all_wrong != 0;
}

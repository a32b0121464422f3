// Times an MPI library as the comparison benchmark does Fulmen and the floor: same operations, sizes, batches and definitions
// (see compare/main.rs), one JSON object a line.
//
//   mpicc -O2 -o mpi mpi.c
//   mpirun -n 2 ./mpi --op all-reduce --memory plain|shared --sizes 8,4096 --seconds 0.1 [--cpus 0,1]
//
// "shared" takes the buffers from MPI_Win_allocate_shared, the nearest thing to registered memory between processes of one
// machine; "plain" takes them from malloc.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SAMPLES = 4000, FEWEST = 7, TRIALS = 5, STREAM = 32, LIFETIME_SECONDS = 300 };

static int rank, ranks;
static float *in, *out;

static void p2p(int words) {  // a round trip
  if (rank == 0) {
    MPI_Send(in, words, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(out, words, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (rank == 1) {
    MPI_Recv(out, words, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(in, words, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
}

// STREAM messages one way, and a word back when all have come.
static void stream(int words) {
  MPI_Request pending[STREAM];
  char done = 0;
  if (rank > 1) return;
  for (int i = 0; i < STREAM; i++) {
    if (rank == 0)
      MPI_Isend(in, words, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, &pending[i]);
    else
      MPI_Irecv(out, words, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, &pending[i]);
  }
  MPI_Waitall(STREAM, pending, MPI_STATUSES_IGNORE);
  if (rank == 0)
    MPI_Recv(&done, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  else
    MPI_Send(&done, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
}

static void all_reduce(int words) {
  MPI_Allreduce(in, out, words, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(int words) {
  MPI_Allgather(in, words / ranks, MPI_FLOAT, out, words / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(int words) {
  MPI_Reduce_scatter_block(in, out, words / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(int words) {
  MPI_Bcast(out, words, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void reduce(int words) {
  MPI_Reduce(in, out, words, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void gather(int words) {
  MPI_Gather(in, words / ranks, MPI_FLOAT, out, words / ranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void scatter(int words) {
  MPI_Scatter(in, words / ranks, MPI_FLOAT, out, words / ranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void all_to_all(int words) {
  MPI_Alltoall(in, words / ranks, MPI_FLOAT, out, words / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void scan(int words) {
  MPI_Scan(in, out, words, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void barrier(int words) {
  (void)words;
  MPI_Barrier(MPI_COMM_WORLD);
}

static const struct op {
  const char *name;
  void (*call)(int words);
} ops[] = {{"p2p", p2p},
           {"stream", stream},
           {"all-reduce", all_reduce},
           {"all-gather", all_gather},
           {"reduce-scatter", reduce_scatter},
           {"broadcast", broadcast},
           {"reduce", reduce},
           {"gather", gather},
           {"scatter", scatter},
           {"all-to-all", all_to_all},
           {"scan", scan},
           {"barrier", barrier}};

// Times are taken on these too: some processors move lines of zeroes faster than any other, so that no contender has those.
static float given(int of, int i) { return (float)((of + 1) * (i % 64)); }

static float sum(int i) { return (float)(ranks * (ranks + 1) / 2 * (i % 64)); }

// Word i of this rank's output after a call on given() data.
static float expected(const struct op *op, int words, int i) {
  int share = words / ranks;
  if (op->call == p2p && rank < 2) return given(1 - rank, i);
  if (op->call == stream && rank == 1) return given(0, i);
  if (op->call == all_reduce) return sum(i);
  if (op->call == all_gather) return given(i / share, i % share);
  if (op->call == reduce_scatter && i < share) return sum(rank * share + i);
  if (op->call == broadcast) return given(0, i);
  if (op->call == reduce && rank == 0) return sum(i);
  if (op->call == gather && rank == 0) return given(i / share, i % share);
  if (op->call == scatter && i < share) return given(0, rank * share + i);
  if (op->call == all_to_all) return given(i / share, rank * share + i % share);
  if (op->call == scan) return (float)((rank + 1) * (rank + 2) / 2 * (i % 64));
  return given(rank, i);
}

// Makes one call on known numbers; counts the wrong words of all ranks.
static long check(const struct op *op, int words) {
  long wrong = 0;
  for (int i = 0; i < words; i++) in[i] = out[i] = given(rank, i);
  MPI_Barrier(MPI_COMM_WORLD);
  op->call(words);
  for (int i = 0; i < words; i++) wrong += out[i] != expected(op, words, i);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  return wrong;
}

static double batch(const struct op *op, int words, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < calls; i++) op->call(words);
  return (MPI_Wtime() - start) / calls;
}

static double slowest(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

static int calls_in_a_batch(double once) {
  int calls = 100e-6 / (once > 1e-9 ? once : 1e-9);
  return calls < 1 ? 1 : calls > 20000 ? 20000 : calls;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(const struct op *op, const char *memory, size_t bytes, double seconds) {
  static double sample[MAX_SAMPLES];
  int words = bytes / 4;
  long wrong = check(op, words);
  int calls = calls_in_a_batch(slowest(batch(op, words, 3)));
  double trial[TRIALS];
  for (int i = 0; i < TRIALS; i++) trial[i] = batch(op, words, calls);
  qsort(trial, TRIALS, sizeof *trial, ascending);
  double once = slowest(trial[TRIALS / 2]);
  calls = calls_in_a_batch(once);
  double fit = seconds / (once * calls);
  int wanted = fit < FEWEST ? FEWEST : fit > MAX_SAMPLES ? MAX_SAMPLES : (int)fit;
  int n = 0, go = 1;
  double start = MPI_Wtime();
  while (n < wanted && go) {
    sample[n++] = batch(op, words, calls);
    if (n >= FEWEST && n % FEWEST == 0) {  // on a busy machine the budget ends the case
      go = MPI_Wtime() - start < 2 * seconds;
      MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, sample, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  wrong += check(op, words);
  if (rank) return;
  qsort(sample, n, sizeof *sample, ascending);
  double per_call = op->call == p2p ? 2 : op->call == stream ? STREAM : 1, factor = 1;
  if (op->call == all_reduce) factor = 2.0 * (ranks - 1) / ranks;
  if (op->call == all_gather || op->call == reduce_scatter || op->call == gather || op->call == scatter || op->call == all_to_all)
    factor = 1.0 * (ranks - 1) / ranks;
  double median = sample[n / 2] / per_call, bandwidth = bytes / median / 1e9;
  printf("{\"op\":\"%s\",\"bytes\":%zu,\"ranks\":%d,\"dtype\":\"f32\",\"memory\":\"%s\",\"samples\":%d,\"min_us\":%.4f,"
         "\"p50_us\":%.4f,\"p99_us\":%.4f,\"algbw_GBps\":%.4f,\"busbw_GBps\":%.4f,\"wrong\":%ld}\n",
         op->name, bytes, ranks, memory, n, sample[0] / per_call * 1e6, median * 1e6, sample[n * 99 / 100] / per_call * 1e6,
         bandwidth, bandwidth * factor, wrong);
  fflush(stdout);
}

// Binds this process to the rank-th processor of the list.
static void pin(const char *list) {
  int cpu[256], n = 0;
  for (char *end; n < 256 && *list; list = *end ? end + 1 : end) {
    cpu[n++] = (int)strtol(list, &end, 10);
    if (end == list) return;
  }
  if (n == 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu[rank % n], &set);
  if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}

static void *allocate(const char *memory, size_t bytes) {
  void *start = NULL;
  MPI_Win window;
  if (strcmp(memory, "shared") == 0)
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &start, &window);
  else if (posix_memalign(&start, 4096, bytes))
    start = NULL;
  if (start == NULL) {
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return start;
}

int main(int argc, char **argv) {
  const char *name = "p2p", *memory = "plain", *sizes = "8", *cpus = "";
  double seconds = 0.1;
  alarm(LIFETIME_SECONDS);  // a hang ends by itself
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--op")) name = argv[i + 1];
    if (!strcmp(argv[i], "--memory")) memory = argv[i + 1];
    if (!strcmp(argv[i], "--sizes")) sizes = argv[i + 1];
    if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
    if (!strcmp(argv[i], "--cpus")) cpus = argv[i + 1];
  }
  pin(cpus);
  size_t largest = 4096;
  char *end;
  for (const char *at = sizes; *at; at = *end ? end + 1 : end) {
    size_t bytes = strtoull(at, &end, 10);
    if (end == at) break;
    if (bytes > largest) largest = bytes;
  }
  in = allocate(memory, largest);
  out = allocate(memory, largest);
  for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
    if (strcmp(ops[o].name, name)) continue;
    for (const char *at = sizes; *at; at = *end ? end + 1 : end) {
      size_t bytes = strtoull(at, &end, 10);
      if (end == at) break;
      measure(&ops[o], memory, bytes, seconds);
    }
  }
  MPI_Finalize();
  return 0;
}

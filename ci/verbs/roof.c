// What a bare process_vm_writev gives: one process writes a buffer into another's plain memory, over and over.
//
//   cc -O2 -o roof roof.c && ./roof BYTES SECONDS [CPU_OF_WRITER CPU_OF_OWNER]
//
// Prints GB/s (10^9 bytes), or nothing and ends with 3 where the system does not allow it.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void stay_on(int argc, char **argv, int at) {
  cpu_set_t set;
  if (argc <= at) return;
  CPU_ZERO(&set);
  CPU_SET(atoi(argv[at]), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) perror("sched_setaffinity");
}

int main(int argc, char **argv) {
  size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 65536;
  double seconds = argc > 2 ? atof(argv[2]) : 0.5;
  char *target = malloc(bytes), *source = malloc(bytes);
  int ready[2], answer[2];
  if (!target || !source || bytes == 0 || pipe(ready) != 0 || pipe(answer) != 0) return 1;
  // Both have their pages before anybody measures.
  memset(target, 0, bytes);
  memset(source, 7, bytes);
  // The writer is the parent, which even a strict ptrace policy allows.
  pid_t owner = fork();
  if (owner < 0) return 1;
  if (owner == 0) {
    char done;
    stay_on(argc, argv, 4);
    prctl(PR_SET_PDEATHSIG, 9);
    // fork gave it the pages for reading only.
    memset(target, 1, bytes);
    if (write(ready[1], "", 1) != 1) return 1;
    if (read(answer[0], &done, 1) != 1) return 1;
    for (size_t at = 0; at < bytes; at++) {
      if (target[at] != 7) return 2;
    }
    return 0;
  }
  char there;
  if (read(ready[0], &there, 1) != 1) return 1;
  stay_on(argc, argv, 3);
  struct iovec from = {source, bytes}, to = {target, bytes};
  long count = 0;
  double begin = 0, end = 0;
  for (double warm = now() + seconds / 4; end - begin < seconds || begin == 0; count++) {
    if (process_vm_writev(owner, &from, 1, &to, 1, 0) != (ssize_t)bytes) {
      perror("process_vm_writev");
      return 3;
    }
    end = now();
    if (begin == 0 && end > warm) {
      begin = end;
      count = -1;
    }
  }
  int status = 0;
  if (write(answer[1], "", 1) != 1 || waitpid(owner, &status, 0) != owner || status != 0) {
    fprintf(stderr, "roof: wrong data\n");
    return 2;
  }
  printf("%.3f\n", (double)count * (double)bytes / (end - begin) * 1e-9);
  return 0;
}

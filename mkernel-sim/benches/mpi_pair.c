/* Two ranks of Open MPI: 8 bytes back and forth, then 1 MiB messages one way.
   Prints microseconds of one way, and of all the large messages; medians of nine, as benches/shm.rs takes them.
   mpicc -O2 -o target/mpi_pair mkernel-sim/benches/mpi_pair.c && mpirun -n 2 target/mpi_pair ROUNDS MESSAGES */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 9, MIB = 1 << 20 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, REPEATS, sizeof *values, ascending);
    return values[REPEATS / 2];
}

static double ping_pong(int rank, int rounds) {
    double times[REPEATS];
    char bytes[8] = {0};
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < rounds; i++) {
            if (rank == 0) MPI_Send(bytes, 8, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(bytes, 8, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(bytes, 8, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
        times[repeat] = (MPI_Wtime() - start) * 1e6 / (2.0 * rounds);
    }
    return median(times);
}

static double stream(int rank, int messages) {
    double times[REPEATS];
    char *bytes = malloc((size_t)messages * MIB);
    if (!bytes) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(bytes, rank, (size_t)messages * MIB);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < messages; i++) {
            char *at = bytes + (size_t)i * MIB;
            if (rank == 0) MPI_Send(at, MIB, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            else MPI_Recv(at, MIB, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        times[repeat] = (MPI_Wtime() - start) * 1e6;
    }
    free(bytes);
    return median(times);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3 || size != 2) MPI_Abort(MPI_COMM_WORLD, 2);
    ping_pong(rank, atoi(argv[1]));
    double way = ping_pong(rank, atoi(argv[1])), all = stream(rank, atoi(argv[2]));
    if (rank == 0) printf("%.4f %.1f\n", way, all);
    MPI_Finalize();
    return 0;
}

/* Compares the NEON kernels with the scalar ones, bit by bit, on made-up int8 rows and codes. neon_check.sh runs it. */
#include <stdio.h>

#include "../src/unlimiformer/datastore/kernels/products/products.h"

typedef int Scan(const States *, const Queries *, int64_t, const TopK *);
extern Scan scan_scalar, scan_neon;
extern int runs_here(const char *name);

typedef struct { int64_t row; float score; } Hit;

static int by_row(const void *a, const void *b) {
    int64_t x = ((const Hit *)a)->row, y = ((const Hit *)b)->row;
    return (x > y) - (x < y);
}

static Hit *search(Scan *scan, const States *states, const Queries *queries, int64_t k) {
    int64_t count = queries->count * k;
    TopK best = {malloc(count * sizeof(float)), malloc(count * sizeof(int64_t)), k};
    Hit *hits = calloc(count, sizeof *hits); /* zeros: the padding is compared too */
    if (scan(states, queries, 1, &best)) exit(2);
    for (int64_t i = 0; i < count; i++) hits[i].row = best.row[i], hits[i].score = best.score[i];
    for (int64_t q = 0; q < queries->count; q++) qsort(hits + q * k, k, sizeof *hits, by_row);
    free(best.score);
    free(best.row);
    return hits;
}

/* Whether the loops of the IVF store agree with plain ones. */
static int blocks_agree(int count, int64_t dims) {
    uint8_t codes[BLOCK * 128];
    int8_t data[QUERY_GROUP][128];
    const int8_t *queries[QUERY_GROUP] = {data[0], data[1], data[2], data[3]};
    int32_t sums[QUERY_GROUP * BLOCK], expected[QUERY_GROUP * BLOCK];
    for (int64_t i = 0; i < BLOCK * dims; i++) codes[i] = (uint8_t)(rand() % 128);
    for (int64_t i = 0; i < QUERY_GROUP * dims; i++) data[i / dims][i % dims] = (int8_t)(rand() % 255 - 127);
    for (int i = 0; i < count * BLOCK; i++) sums[i] = expected[i] = rand() % 1000;
    dots_block(codes, queries, count, dims, sums);
    for (int q = 0; q < count; q++)
        for (int64_t i = 0; i < BLOCK * dims; i++)
            expected[q * BLOCK + i / INTERLEAVED % BLOCK] +=
                codes[i] * data[q][i / (BLOCK * INTERLEAVED) * INTERLEAVED + i % INTERLEAVED];
    unsigned bits = 0;
    for (int t = 0; t < BLOCK; t++) bits |= (unsigned)(expected[t] > expected[3]) << t;
    return !memcmp(sums, expected, (size_t)count * BLOCK * sizeof *sums) && above(sums, expected[3]) == bits;
}

int main(void) {
    if (!runs_here("neon")) return puts("this processor has no dot product"), 2;
    const int64_t widths[] = {8, 19, 64, 100, 768}, rows = 9000, count = 7, k = 50;
    for (int w = 0; w < 5; w++) {
        int64_t width = widths[w];
        int8_t *data = malloc(rows * width);
        float *scales = malloc(rows * sizeof *scales), *numbers = malloc(count * width * sizeof *numbers);
        for (int64_t i = 0; i < rows * width; i++) data[i] = (int8_t)(rand() % 255 - 127);
        for (int64_t i = 0; i < rows; i++) scales[i] = 0.5f + (float)rand() / (float)RAND_MAX;
        for (int64_t i = 0; i < count * width; i++) numbers[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        States states = {(const char *)data, scales, rows, width, 2};
        Queries queries = {numbers, count};
        Hit *scalar = search(scan_scalar, &states, &queries, k), *neon = search(scan_neon, &states, &queries, k);
        if (memcmp(scalar, neon, count * k * sizeof *neon)) return printf("width %d: hits differ\n", (int)width), 1;
        free(scalar), free(neon), free(data), free(scales), free(numbers);
    }
    for (int count = 1; count <= QUERY_GROUP; count++)
        for (int64_t dims = 0; dims <= 128; dims += INTERLEAVED)
            if (!blocks_agree(count, dims)) return printf("%d queries, %d dims: codes differ\n", count, (int)dims), 1;
    return puts("NEON and scalar kernels agree"), 0;
}

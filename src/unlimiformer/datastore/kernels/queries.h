/* Queries in the form that the products need: padded, aligned, and for int8 rows rounded to 16 bits. */
#ifndef QUERIES_H
#define QUERIES_H
#include "products/products.h"

typedef struct {
    void *data;       /* (padded_count, padded_width): float32, or int16 for int8 rows; zeros where padded */
    float *scales;    /* (count): factor of the scores of each query */
    int64_t count, padded_count, padded_width;
    int8_t *upper;    /* (padded_count, padded_width): their upper eight bits, for int8 rows */
    int32_t *offsets; /* (padded_count): what dots_upper subtracts */
    float *margins;   /* (count): norms of the rest of the bits */
} PreparedQueries;

/* Allocates zeros at the start of a cache line: a load that straddles two lines costs double. */
static void *aligned_zeros(int64_t count) {
    size_t bytes = ((size_t)count * sizeof(float) + 63) / 64 * 64;
    void *array = aligned_alloc(64, bytes);
    return array ? memset(array, 0, bytes) : NULL;
}

/* Allocates room for the queries. Returns 0 if memory runs out. */
static int allocate_queries(PreparedQueries *queries, int64_t count, int64_t width) {
    int64_t padded = (width + PAD - 1) / PAD * PAD, padded_count = (count + QUERIES - 1) / QUERIES * QUERIES;
    *queries = (PreparedQueries){
        .data = aligned_zeros(padded_count * padded),
        .scales = aligned_zeros(padded_count),
        .count = count,
        .padded_count = padded_count,
        .padded_width = padded,
        .upper = aligned_zeros(padded_count * padded / (int64_t)sizeof(float)),
        .offsets = aligned_zeros(padded_count),
        .margins = aligned_zeros(padded_count),
    };
    return queries->data && queries->scales && queries->upper && queries->offsets && queries->margins;
}

static void free_queries(PreparedQueries *queries) {
    free(queries->data);
    free(queries->scales);
    free(queries->upper);
    free(queries->offsets);
    free(queries->margins);
}

/* Splits query `q`, rounded to 16 bits, into its upper bits and the norm of the rest, with a little more for what floats
 * round off. */
static void split_query(const PreparedQueries *queries, int64_t q, int64_t width) {
    const int16_t *query = (const int16_t *)queries->data + q * queries->padded_width;
    int8_t *upper = queries->upper + q * queries->padded_width;
    double rest = 0, whole = 0;
    queries->offsets[q] = 0;
    for (int64_t i = 0; i < width; i++) {
        int32_t high = (query[i] + 128) >> 8;
        upper[i] = (int8_t)(high < 127 ? high : 127);
        double low = query[i] - 256 * upper[i];
        queries->offsets[q] += 128 * upper[i];
        rest += low * low;
        whole += (double)query[i] * query[i];
    }
    queries->margins[q] = (float)(1.001 * sqrt(rest) + 2e-6 * sqrt(whole));
}

/* Copies the queries to rows of `padded_width` numbers, as int16 for int8 rows, and fills the other fields. */
static void prepare_queries(const Queries *queries, const States *states, PreparedQueries *prepared) {
    int64_t padded = prepared->padded_width, width = states->width;
    for (int64_t q = 0; q < queries->count; q++) {
        const float *query = queries->data + q * width;
        if (states->kind != INT8) {
            memcpy((float *)prepared->data + q * padded, query, (size_t)width * sizeof(float));
            prepared->scales[q] = 1.0f;
            continue;
        }
        prepared->scales[q] = quantize_query(query, width, (int16_t *)prepared->data + q * padded);
        split_query(prepared, q, width);
    }
}

#endif

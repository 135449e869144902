/* The weighted sums of rows that a search has found: rows float32, bfloat16 or int8, sums float32. */
#include "topk.h"

typedef struct {
    const int64_t *row;  /* (count, k) */
    const float *weight; /* (count, k) */
    int64_t count, k;
} Mixture;

/* sum[i] += w0 * x0[i] + ... for four rows at a time, so that the sum is loaded and stored a quarter as often */
#define ADD_FOUR(TYPE, VALUE)                                                                                   \
    do {                                                                                                        \
        const TYPE *x0 = (const TYPE *)at[0], *x1 = (const TYPE *)at[1];                                        \
        const TYPE *x2 = (const TYPE *)at[2], *x3 = (const TYPE *)at[3];                                        \
        for (int64_t i = 0; i < width; i++)                                                                     \
            sum[i] += w[0] * VALUE(x0[i]) + w[1] * VALUE(x1[i]) + w[2] * VALUE(x2[i]) + w[3] * VALUE(x3[i]);    \
    } while (0)
#define TO_FLOAT(x) ((float)(x))

/* out (count, width): for each query, the sum over its `k` rows of weight x row. */
void EXPORT(mix)(const States *states, const Mixture *mixture, int64_t parts, float *out) {
    int64_t stride = row_bytes(states), width = states->width, kind = states->kind, k = mixture->k;
    const float *scales = states->scales;
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t q = 0; q < mixture->count; q++) {
        float *restrict sum = out + q * width;
        const int64_t *rows = mixture->row + q * k;
        const float *weights = mixture->weight + q * k;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t j = 0; j < k; j += 4) {
            const char *at[4];
            float w[4];
            for (int64_t t = 0; t < 4; t++) {
                int64_t r = j + t < k ? rows[j + t] : rows[j];
                at[t] = states->data + r * stride;
                w[t] = j + t < k ? weights[j + t] * (scales ? scales[r] : 1.0f) : 0.0f;
                if (j + t + 8 < k)
                    for (int64_t i = 0; i < stride; i += 64)
                        __builtin_prefetch(states->data + rows[j + t + 8] * stride + i);
            }
            if (kind == FLOAT32) ADD_FOUR(float, TO_FLOAT);
            else if (kind == BFLOAT16) ADD_FOUR(uint16_t, from_bfloat16);
            else ADD_FOUR(int8_t, TO_FLOAT);
        }
    }
}

/* The two loops of the exact store that decide its speed on a CPU.
 *
 * scan: dot products of every stored row with every query, keeping each query's K best as it goes, so that no
 *       (queries x rows) array of scores ever exists.
 * mix:  weighted sums of chosen rows.
 *
 * Rows are float32, bfloat16 or int8 with one scale a row. Queries, scores and sums are float32, except that int8 rows
 * are scanned with int16 queries, which multiplies twice as many numbers an instruction. The work is cut in parts, run in
 * parallel where OpenMP is there. This file knows nothing of Python, heads or models.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#if defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v)) /* else gcc reads it again for every product, and loads become the limit */
#else
#define IN_REGISTER(v) (void)(v)
#endif
#define ROWS 8       /* rows expanded to float32 at a time: they stay in the first-level cache */
#define TILE_ROWS 4  /* rows x queries whose sums live in registers */
#define TILE_QUERIES 3

typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

enum { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

typedef struct {
    float *score;
    int64_t *row;
    int64_t count;
    float floor; /* nothing at or below this can be among the K best any more */
} best_list;

static int64_t bytes_of(int kind, int64_t width) {
    return width * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1);
}

static void expand(const char *source, int kind, int64_t width, float *out) {
    if (kind == FLOAT32) {
        memcpy(out, source, (size_t)width * sizeof(float));
    } else {
        const uint16_t *half = (const uint16_t *)source;
        uint32_t *bits = (uint32_t *)out;
        for (int64_t i = 0; i < width; i++) bits[i] = (uint32_t)half[i] << 16;
    }
}

static void widen(const int8_t *source, int64_t width, int16_t *out) {
    for (int64_t i = 0; i < width; i++) out[i] = source[i];
}

/* Reorders the list so that its `keep` largest scores come first (quickselect). */
static void select_best(best_list *list, int64_t keep) {
    float *s = list->score;
    int64_t *r = list->row, low = 0, high = list->count - 1;
    while (low < high) {
        float a = s[low], b = s[(low + high) / 2], c = s[high];
        float pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
        int64_t i = low, j = high;
        while (i <= j) {
            while (s[i] > pivot) i++;
            while (s[j] < pivot) j--;
            if (i <= j) {
                float swap_s = s[i]; s[i] = s[j]; s[j] = swap_s;
                int64_t swap_r = r[i]; r[i] = r[j]; r[j] = swap_r;
                i++; j--;
            }
        }
        if (keep - 1 <= j) high = j;
        else if (keep - 1 >= i) low = i;
        else break;
    }
    list->count = keep;
    float least = s[0];
    for (int64_t i = 1; i < keep; i++) if (s[i] < least) least = s[i];
    list->floor = least;
}

/* Offers the scores of neighbouring rows; most are below the floor, so one comparison of their maximum decides. */
static inline void offer(best_list *list, const float *score, int64_t row, int64_t count, int64_t keep,
                         int64_t capacity) {
    float highest = score[0];
    for (int t = 1; t < TILE_ROWS; t++) highest = score[t] > highest ? score[t] : highest;
    if (highest <= list->floor) return;
    for (int64_t t = 0; t < count; t++) {
        if (!(score[t] > list->floor)) continue;
        list->score[list->count] = score[t];
        list->row[list->count] = row + t;
        if (++list->count == capacity) select_best(list, keep);
    }
}

static inline float total(vec v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* rows (TILE_ROWS, padded) x queries (TILE_QUERIES, padded) -> out (TILE_QUERIES, TILE_ROWS) */
static inline void dot_tile(const float *rows, const float *queries, int64_t padded, float *out) {
    vec sums[TILE_ROWS][TILE_QUERIES];
    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < padded; i += LANES) {
        vec q[TILE_QUERIES];
        for (int b = 0; b < TILE_QUERIES; b++) {
            q[b] = *(const vec *)(queries + b * padded + i);
            IN_REGISTER(q[b]);
        }
        for (int a = 0; a < TILE_ROWS; a++) {
            vec x = *(const vec *)(rows + a * padded + i);
            IN_REGISTER(x);
            for (int b = 0; b < TILE_QUERIES; b++) sums[a][b] += x * q[b];
        }
    }
    for (int a = 0; a < TILE_ROWS; a++)
        for (int b = 0; b < TILE_QUERIES; b++) out[b * TILE_ROWS + a] = total(sums[a][b]);
}

/* The same in integers. Written out so that compilers see twelve plain sums of products and use their widest
 * multiply-add; the caller has chosen the queries' range so that no sum overflows. */
__attribute__((noinline)) static void dot_tile_int(const int16_t *restrict rows, const int16_t *restrict queries,
                                                   int64_t padded, float *restrict out) {
    const int16_t *r0 = rows, *r1 = rows + padded, *r2 = r1 + padded, *r3 = r2 + padded;
    const int16_t *q0 = queries, *q1 = queries + padded, *q2 = q1 + padded;
    int32_t s00 = 0, s01 = 0, s02 = 0, s10 = 0, s11 = 0, s12 = 0;
    int32_t s20 = 0, s21 = 0, s22 = 0, s30 = 0, s31 = 0, s32 = 0;
    for (int64_t i = 0; i < padded; i++) {
        s00 += r0[i] * q0[i]; s01 += r0[i] * q1[i]; s02 += r0[i] * q2[i];
        s10 += r1[i] * q0[i]; s11 += r1[i] * q1[i]; s12 += r1[i] * q2[i];
        s20 += r2[i] * q0[i]; s21 += r2[i] * q1[i]; s22 += r2[i] * q2[i];
        s30 += r3[i] * q0[i]; s31 += r3[i] * q1[i]; s32 += r3[i] * q2[i];
    }
    out[0] = (float)s00; out[1] = (float)s10; out[2] = (float)s20; out[3] = (float)s30;
    out[4] = (float)s01; out[5] = (float)s11; out[6] = (float)s21; out[7] = (float)s31;
    out[8] = (float)s02; out[9] = (float)s12; out[10] = (float)s22; out[11] = (float)s32;
}

/* The `keep` best of rows [start, stop) for each query. Returns 0, or -1 when there is no memory. */
static int scan_part(const char *states, int kind, const float *row_scales, int64_t width, int64_t start, int64_t stop,
                     const void *queries, const float *query_scales, int64_t count_queries, int64_t padded,
                     int64_t keep, float *out_score, int64_t *out_row) {
    int64_t capacity = 2 * keep + 64, stride = bytes_of(kind, width);
    best_list *lists = calloc((size_t)count_queries, sizeof *lists);
    void *scratch = calloc((size_t)(ROWS * padded), sizeof(float));
    float *score = malloc((size_t)(count_queries * capacity) * sizeof *score);
    int64_t *row = malloc((size_t)(count_queries * capacity) * sizeof *row);
    int failed = !lists || !scratch || !score || !row;
    for (int64_t q = 0; !failed && q < count_queries; q++)
        lists[q] = (best_list){score + q * capacity, row + q * capacity, 0, -INFINITY};
    for (int64_t base = start; !failed && base < stop; base += ROWS) {
        int64_t here = stop - base < ROWS ? stop - base : ROWS;
        float block_scale[ROWS] = {0};
        for (int64_t a = 0; a < here; a++) {
            const char *source = states + (base + a) * stride;
            block_scale[a] = row_scales ? row_scales[base + a] : 1.0f;
            for (int64_t i = 0; i < stride; i += 64) __builtin_prefetch(source + 2 * ROWS * stride + i);
            if (kind == INT8) widen((const int8_t *)source, width, (int16_t *)scratch + a * padded);
            else expand(source, kind, width, (float *)scratch + a * padded);
        }
        for (int64_t q = 0; q < count_queries; q += TILE_QUERIES) {
            for (int64_t a = 0; a < here; a += TILE_ROWS) {
                float dots[TILE_ROWS * TILE_QUERIES];
                if (kind == INT8)
                    dot_tile_int((int16_t *)scratch + a * padded, (const int16_t *)queries + q * padded, padded, dots);
                else
                    dot_tile((float *)scratch + a * padded, (const float *)queries + q * padded, padded, dots);
                int64_t rows = here - a < TILE_ROWS ? here - a : TILE_ROWS;
                for (int b = 0; b < TILE_QUERIES && q + b < count_queries; b++) {
                    float *scores = dots + b * TILE_ROWS;
                    for (int t = 0; t < TILE_ROWS; t++) scores[t] *= block_scale[a + t] * query_scales[q + b];
                    offer(&lists[q + b], scores, base + a, rows, keep, capacity);
                }
            }
        }
    }
    for (int64_t q = 0; !failed && q < count_queries; q++) {
        if (lists[q].count > keep) select_best(&lists[q], keep);
        memcpy(out_score + q * keep, lists[q].score, (size_t)lists[q].count * sizeof(float));
        memcpy(out_row + q * keep, lists[q].row, (size_t)lists[q].count * sizeof(int64_t));
    }
    free(lists); free(scratch); free(score); free(row);
    return failed ? -1 : 0;
}

/* Keeps, for each query and each of `parts` runs of rows, the `keep` best.
 * queries: (count_queries, padded), float32, or int16 for int8 rows; padded with zeros to whole tiles and to a multiple
 * of 16 numbers. query_scales: (count_queries,). out_score, out_row: (parts, count_queries, keep), left as they are
 * where a part has fewer rows. Returns how many parts found no memory. */
int scan(const char *states, int kind, const float *row_scales, int64_t width, int64_t rows, const void *queries,
         const float *query_scales, int64_t count_queries, int64_t padded, int64_t keep, int64_t parts,
         float *out_score, int64_t *out_row) {
    int failures = 0;
#pragma omp parallel for schedule(static) num_threads(parts) reduction(+ : failures)
    for (int64_t p = 0; p < parts; p++)
        failures -= scan_part(states, kind, row_scales, width, rows * p / parts, rows * (p + 1) / parts, queries,
                              query_scales, count_queries, padded, keep, out_score + p * count_queries * keep,
                              out_row + p * count_queries * keep);
    return failures;
}

/* out (count, width): for each query, the sum over its `keep` rows of weight x row. */
void mix(const char *states, int kind, const float *scales, int64_t width, const int64_t *row, const float *weight,
         int64_t count, int64_t keep, int64_t parts, float *out) {
    int64_t stride = bytes_of(kind, width);
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t q = 0; q < count; q++) {
        float *sum = out + q * width;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < keep; k++) {
            int64_t r = row[q * keep + k];
            float w = weight[q * keep + k] * (scales ? scales[r] : 1.0f);
            if (w == 0) continue;
            const char *source = states + r * stride;
            if (k + 2 < keep) __builtin_prefetch(states + row[q * keep + k + 2] * stride);
            if (kind == FLOAT32) {
                const float *x = (const float *)source;
                for (int64_t i = 0; i < width; i++) sum[i] += w * x[i];
            } else if (kind == BFLOAT16) {
                const uint16_t *x = (const uint16_t *)source;
                for (int64_t i = 0; i < width; i++) {
                    union { uint32_t bits; float value; } wide = {(uint32_t)x[i] << 16};
                    sum[i] += w * wide.value;
                }
            } else {
                const int8_t *x = (const int8_t *)source;
                for (int64_t i = 0; i < width; i++) sum[i] += w * (float)x[i];
            }
        }
    }
}

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

#define CAPACITY(keep) (2 * (keep) + 64) /* room of a list; when it is full, about its best half is kept */
#define BUCKETS 512
#define PAD 16 /* widths are padded to a multiple of this */

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

/* Makes room in a full list: drops what a histogram of the scores shows to be below the K best. Two passes without a
 * branch that depends on the data, several times faster than select_best, but it may keep a few too many. */
static void drop_low(best_list *list, int64_t keep) {
    float *s = list->score, low = s[0], high = s[0];
    for (int64_t i = 1; i < list->count; i++) {
        low = s[i] < low ? s[i] : low;
        high = s[i] > high ? s[i] : high;
    }
    float scale = (BUCKETS - 1) / (high - low);
    if (scale > 0 && scale < INFINITY) {
        int32_t histogram[BUCKETS] = {0};
        for (int64_t i = 0; i < list->count; i++) histogram[(int32_t)((s[i] - low) * scale)]++;
        int32_t bucket = BUCKETS - 1;
        for (int64_t above = histogram[bucket]; above < keep; above += histogram[bucket]) bucket--;
        int64_t kept = 0;
        float least = high;
        for (int64_t i = 0; i < list->count; i++) {
            float score = s[i];
            int in = (int32_t)((score - low) * scale) >= bucket;
            s[kept] = score;
            list->row[kept] = list->row[i];
            kept += in;
            least = in && score < least ? score : least;
        }
        list->count = kept;
        list->floor = least;
    }
    if (list->count > keep + keep / 2) select_best(list, keep); /* scores bunched in one bucket */
}

/* Offers the scores of neighbouring rows; most are below the floor, so one comparison of their maximum decides. */
static inline void offer(best_list *list, const float *score, int64_t row, int64_t count, int64_t keep) {
    float highest = score[0];
    for (int t = 1; t < TILE_ROWS; t++) highest = score[t] > highest ? score[t] : highest;
    if (highest <= list->floor) return;
    int64_t length = list->count;
    for (int64_t t = 0; t < count; t++) {
        list->score[length] = score[t];
        list->row[length] = row + t;
        length += score[t] > list->floor;
    }
    list->count = length;
    if (length > CAPACITY(keep) - TILE_ROWS) drop_low(list, keep);
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

/* Fills one list a query with the `keep` best of rows [start, stop), and possibly some more. */
static void scan_part(const char *states, int kind, const float *row_scales, int64_t width, int64_t start, int64_t stop,
                      const void *queries, const float *query_scales, int64_t count_queries, int64_t padded,
                      int64_t keep, void *scratch, best_list *lists) {
    int64_t stride = bytes_of(kind, width);
    for (int64_t base = start; base < stop; base += ROWS) {
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
                    offer(&lists[q + b], scores, base + a, rows, keep);
                }
            }
        }
    }
}

/* The `keep` best of one query's lists, one list a part; slots that no row fills get -inf and row 0. */
static void join_parts(best_list *lists, int64_t parts, int64_t step, int64_t keep, float *out_score, int64_t *out_row) {
    for (int64_t p = 0; p < parts; p++) {
        best_list *list = lists + p * step;
        for (int64_t i = 0; p > 0 && i < list->count; i++) {
            lists->score[lists->count] = list->score[i];
            lists->row[lists->count] = list->row[i];
            lists->count += list->score[i] > lists->floor;
            if (lists->count == CAPACITY(keep)) drop_low(lists, keep);
        }
        if (lists->count > keep) drop_low(lists, keep);
    }
    if (lists->count > keep) select_best(lists, keep);
    int64_t count = lists->count;
    memcpy(out_score, lists->score, (size_t)count * sizeof(float));
    memcpy(out_row, lists->row, (size_t)count * sizeof(int64_t));
    for (int64_t i = count; i < keep; i++) {
        out_score[i] = -INFINITY;
        out_row[i] = 0;
    }
}

/* Queries (count, width) padded with zeros to whole tiles and lanes; for int8 rows as int16, as fine as 32-bit sums
 * allow, with a scale each. */
static void prepare_queries(const float *queries, int64_t count, int64_t width, int64_t padded, int kind, void *out,
                            float *scales) {
    float largest = 2147483647.0f / (127.0f * width) < 32767.0f ? floorf(2147483392.0f / (127.0f * width)) : 32767.0f;
    for (int64_t q = 0; q < count; q++) {
        const float *from = queries + q * width;
        if (kind != INT8) {
            memcpy((float *)out + q * padded, from, (size_t)width * sizeof(float));
            scales[q] = 1.0f;
            continue;
        }
        float peak = 1e-30f;
        for (int64_t i = 0; i < width; i++) peak = fabsf(from[i]) > peak ? fabsf(from[i]) : peak;
        int16_t *whole = (int16_t *)out + q * padded;
        for (int64_t i = 0; i < width; i++) whole[i] = (int16_t)rintf(from[i] * (largest / peak));
        scales[q] = peak / largest;
    }
}

/* The `keep` best rows of each of `queries` (count_queries, width): out_score and out_row (count_queries, keep).
 * Returns 0, or -1 when there is no memory. */
int scan(const char *states, int kind, const float *row_scales, int64_t width, int64_t rows, const float *queries,
         int64_t count_queries, int64_t keep, int64_t parts, float *out_score, int64_t *out_row) {
    int64_t capacity = CAPACITY(keep), all = parts * count_queries;
    int64_t padded = (width + PAD - 1) / PAD * PAD, tiles = (count_queries + TILE_QUERIES - 1) / TILE_QUERIES;
    best_list *lists = malloc((size_t)all * sizeof *lists);
    float *score = malloc((size_t)(all * capacity) * sizeof *score);
    int64_t *row = malloc((size_t)(all * capacity) * sizeof *row);
    float *scratch = calloc((size_t)(parts * ROWS * padded), sizeof *scratch);
    float *prepared = calloc((size_t)(tiles * TILE_QUERIES * padded), sizeof *prepared);
    float *query_scales = malloc((size_t)count_queries * sizeof *query_scales);
    int failed = !lists || !score || !row || !scratch || !prepared || !query_scales;
    if (!failed) {
        prepare_queries(queries, count_queries, width, padded, kind, prepared, query_scales);
        for (int64_t i = 0; i < all; i++) lists[i] = (best_list){score + i * capacity, row + i * capacity, 0, -INFINITY};
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t p = 0; p < parts; p++)
            scan_part(states, kind, row_scales, width, rows * p / parts, rows * (p + 1) / parts, prepared, query_scales,
                      count_queries, padded, keep, scratch + p * ROWS * padded, lists + p * count_queries);
#pragma omp parallel for schedule(static) num_threads(parts)
        for (int64_t q = 0; q < count_queries; q++)
            join_parts(lists + q, parts, count_queries, keep, out_score + q * keep, out_row + q * keep);
    }
    free(lists); free(score); free(row); free(scratch); free(prepared); free(query_scales);
    return failed ? -1 : 0;
}

/* sum[i] += w0 * x0[i] + … for four rows at a time, so that the sum is read and written a quarter as often */
#define ADD_FOUR(TYPE, VALUE)                                                                                   \
    do {                                                                                                        \
        const TYPE *x0 = (const TYPE *)at[0], *x1 = (const TYPE *)at[1];                                        \
        const TYPE *x2 = (const TYPE *)at[2], *x3 = (const TYPE *)at[3];                                        \
        for (int64_t i = 0; i < width; i++)                                                                     \
            sum[i] += w[0] * VALUE(x0[i]) + w[1] * VALUE(x1[i]) + w[2] * VALUE(x2[i]) + w[3] * VALUE(x3[i]);    \
    } while (0)
#define AS_IS(x) ((float)(x))

static inline float from_bfloat16(uint16_t half) {
    union { uint32_t bits; float value; } wide = {(uint32_t)half << 16};
    return wide.value;
}

/* out (count, width): for each query, the sum over its `keep` rows of weight x row. */
void mix(const char *states, int kind, const float *scales, int64_t width, const int64_t *row, const float *weight,
         int64_t count, int64_t keep, int64_t parts, float *out) {
    int64_t stride = bytes_of(kind, width);
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int64_t q = 0; q < count; q++) {
        float *restrict sum = out + q * width;
        const int64_t *rows = row + q * keep;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < keep; k += 4) {
            const char *at[4];
            float w[4];
            for (int64_t t = 0; t < 4; t++) {
                int64_t r = k + t < keep ? rows[k + t] : rows[k];
                at[t] = states + r * stride;
                w[t] = k + t < keep ? weight[q * keep + k + t] * (scales ? scales[r] : 1.0f) : 0.0f;
                if (k + t + 8 < keep)
                    for (int64_t i = 0; i < stride; i += 64)
                        __builtin_prefetch(states + rows[k + t + 8] * stride + i);
            }
            if (kind == FLOAT32) ADD_FOUR(float, AS_IS);
            else if (kind == BFLOAT16) ADD_FOUR(uint16_t, from_bfloat16);
            else ADD_FOUR(int8_t, AS_IS);
        }
    }
}

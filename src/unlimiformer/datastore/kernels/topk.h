/* What the loops of the stores share: kinds of rows, vectors, and lists of the K best so far. */
#ifndef LISTS_H
#define LISTS_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

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
#define BLOCK 8 /* rows scored at a time */
#define BUCKETS 512
#define CAPACITY(keep) (2 * (keep) + 64) /* room of a list; when it is full, about its best half is kept */

typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

enum { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

static inline int64_t bytes_of(int kind, int64_t width) {
    return width * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1);
}

static inline float from_bfloat16(uint16_t half) {
    union { uint32_t bits; float value; } wide = {(uint32_t)half << 16};
    return wide.value;
}

/* A query (width) as int16, as fine as 32-bit sums with int8 rows allow; returns what one of its units is worth. */
static inline float whole_query(const float *query, int64_t width, int16_t *whole) {
    float peak = 1e-30f, largest = fminf(32767.0f, floorf(2147483392.0f / (127.0f * (float)width)));
    for (int64_t i = 0; i < width; i++) peak = fmaxf(peak, fabsf(query[i]));
    for (int64_t i = 0; i < width; i++) whole[i] = (int16_t)rintf(query[i] * (largest / peak));
    return peak / largest;
}

/* ---- the K best so far ---- */

typedef struct {
    float *score;
    int32_t *row;
    int64_t count;
    float floor; /* nothing at or below this can be among the K best any more */
} best_list;

/* Reorders the list so that its `keep` largest scores come first, and drops the others (quickselect). */
static inline void select_best(best_list *list, int64_t keep) {
    float *s = list->score;
    int32_t *r = list->row;
    int64_t low = 0, high = list->count - 1;
    while (low < high) {
        float a = s[low], b = s[(low + high) / 2], c = s[high];
        float pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
        int64_t i = low, j = high;
        while (i <= j) {
            while (s[i] > pivot) i++;
            while (s[j] < pivot) j--;
            if (i <= j) {
                float swap_s = s[i]; s[i] = s[j]; s[j] = swap_s;
                int32_t swap_r = r[i]; r[i] = r[j]; r[j] = swap_r;
                i++; j--;
            }
        }
        if (keep - 1 <= j) high = j;
        else if (keep - 1 >= i) low = i;
        else break;
    }
    list->count = keep;
    float least = s[0];
    for (int64_t i = 1; i < keep; i++) least = s[i] < least ? s[i] : least;
    list->floor = least;
}

/* Makes room in a full list: drops what a histogram of the scores shows to be below the K best. Passes without a branch
 * that depends on the data, several times faster than select_best, but a few too many may stay. */
static inline void drop_low(best_list *list, int64_t keep) {
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
    for (int t = 1; t < BLOCK; t++) highest = score[t] > highest ? score[t] : highest;
    if (highest <= list->floor) return;
    int64_t length = list->count;
    for (int64_t t = 0; t < count; t++) {
        list->score[length] = score[t];
        list->row[length] = (int32_t)(row + t);
        length += score[t] > list->floor;
    }
    list->count = length;
    if (length > CAPACITY(keep) - BLOCK) drop_low(list, keep);
}

/* Brings one query's lists, one a part, together in the first, which then holds at most the `keep` best. */
static inline void merge_parts(best_list *lists, int64_t parts, int64_t step, int64_t keep) {
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
}

#endif

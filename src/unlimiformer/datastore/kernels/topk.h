/* Shared by the kernels: arguments that come from Python, vectors, and lists of the K best rows so far. */
#ifndef TOPK_H
#define TOPK_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The sources are compiled once for each instruction set, whose name ends that of each function: scan_avx2. */
#define JOIN_NAMES(name, instructions) name##_##instructions
#define JOIN(name, instructions) JOIN_NAMES(name, instructions)
#define EXPORT(name) JOIN(name, INSTRUCTIONS)

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__x86_64__) /* else gcc loads a vector again for every product, and loads become the limit */
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define IN_REGISTER(v) (void)(v)
#endif
#define BLOCK 8 /* rows scored at a time */
#define BUCKETS 512
#define CAPACITY(k) (2 * (k) + 64) /* room of a list; when it is full, about its best half is kept */

typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* ---- arguments that come from Python; native.py declares the same fields in the same order ---- */

enum { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

typedef struct {
    const char *data;    /* (rows, width), of the type that `kind` names */
    const float *scales; /* (rows): factors of int8 rows; NULL for other kinds */
    int64_t rows, width;
    int64_t kind;
} States;

typedef struct {
    const float *data; /* (count, width) */
    int64_t count;
} Queries;

typedef struct {
    float *score; /* (queries, k); -inf where no row fills the slot */
    int64_t *row; /* (queries, k); 0 there */
    int64_t k;
} TopK;

/* ---- rows ---- */

static inline int64_t row_bytes(const States *states) {
    return states->width * (states->kind == FLOAT32 ? 4 : states->kind == BFLOAT16 ? 2 : 1);
}

static inline float from_bfloat16(uint16_t half) {
    union { uint32_t bits; float value; } wide = {(uint32_t)half << 16};
    return wide.value;
}

/* Rounds a query (width) to int16, as finely as 32-bit sums with int8 rows allow. Returns the factor that undoes it. */
static inline float quantize_query(const float *query, int64_t width, int16_t *out) {
    float peak = 1e-30f, largest = fminf(32767.0f, floorf(2147483392.0f / (127.0f * (float)width)));
    for (int64_t i = 0; i < width; i++) peak = fmaxf(peak, fabsf(query[i]));
    for (int64_t i = 0; i < width; i++) out[i] = (int16_t)rintf(query[i] * (largest / peak));
    return peak / largest;
}

/* ---- the K best rows so far ---- */

typedef struct {
    float *score;
    int32_t *row;
    int64_t count;
    float floor; /* a score at or below this can no longer be among the K best */
} BestList;

/* Reorders the list so that its `k` largest scores come first, and drops the rest (quickselect). */
static inline void select_best(BestList *list, int64_t k) {
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
        if (k - 1 <= j) high = j;
        else if (k - 1 >= i) low = i;
        else break;
    }
    list->count = k;
    float least = s[0];
    for (int64_t i = 1; i < k; i++) least = s[i] < least ? s[i] : least;
    list->floor = least;
}

/* Makes room in a full list: drops scores that a histogram shows to be below the K best. No branch of its loops depends
 * on the scores, which makes it several times faster than select_best; it may leave a few more than `k`. */
static inline void drop_low(BestList *list, int64_t k) {
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
        for (int64_t above = histogram[bucket]; above < k; above += histogram[bucket]) bucket--;
        int64_t count = 0;
        float least = high;
        for (int64_t i = 0; i < list->count; i++) {
            float score = s[i];
            int stays = (int32_t)((score - low) * scale) >= bucket;
            s[count] = score;
            list->row[count] = list->row[i];
            count += stays;
            least = stays && score < least ? score : least;
        }
        list->count = count;
        list->floor = least;
    }
    if (list->count > k + k / 2) select_best(list, k); /* most scores lie in one bucket */
}

/* Offers the scores of `count` <= BLOCK neighbouring rows to a list. Most scores are below the floor, so that comparing
 * the largest one is usually enough. */
static inline void offer(BestList *list, const float *score, int64_t row, int64_t count, int64_t k) {
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
    if (length > CAPACITY(k) - BLOCK) drop_low(list, k);
}

/* Merges the lists of one query, one per part and `step` apart, into the first, which then has at most the `k` best. */
static inline void merge_parts(BestList *lists, int64_t parts, int64_t step, int64_t k) {
    for (int64_t p = 0; p < parts; p++) {
        BestList *list = lists + p * step;
        for (int64_t i = 0; p > 0 && i < list->count; i++) {
            lists->score[lists->count] = list->score[i];
            lists->row[lists->count] = list->row[i];
            lists->count += list->score[i] > lists->floor;
            if (lists->count == CAPACITY(k)) drop_low(lists, k);
        }
        if (lists->count > k) drop_low(lists, k);
    }
    if (lists->count > k) select_best(lists, k);
}

#endif

/* The inner loops of the embedded engine's decoder, for any CPU with vector instructions.
 *
 * Every output element is accumulated in one fixed order that depends on nothing but its own
 * row: results are the same bits for any batch size, any neighbours and any number of threads.
 *
 * Weights are packed into panels of 16 output columns. fp32: [panel][k][16] floats.
 * bf16: [panel][k / 2][16] pairs, the even k in the low half; products are exact fp32.
 * The key cache is [block][kv_head][width][16], the value cache [block][kv_head][16][width]:
 * a block holds 16 positions, and scores of 16 keys are computed side by side.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define PANEL 16
#define BLOCK 16
#define ROWS 6
#define STRIP 96
#define WIDENED 4096 /* the longest row that is widened */
#define SERIAL 16384 /* elements below which waking other threads costs more than it saves */

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define PARTS (16 / LANES)
#define EACH for (int part = 0; part < PARTS; part++)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4)));

/* 16 numbers side by side, in as many registers as this processor needs for them. */
typedef struct {
    vec of[PARTS];
} v16;

static inline vec splat(float x) { return x - (vec){0}; }

static inline v16 zero(void) {
    v16 x;
    EACH x.of[part] = splat(0.0f);
    return x;
}

static inline v16 load(const float *p) {
    v16 x;
    EACH x.of[part] = *(const vec *)(p + part * LANES);
    return x;
}

static inline void store(float *p, v16 x) {
    EACH *(vec *)(p + part * LANES) = x.of[part];
}

static inline v16 plus(v16 a, v16 b) {
    EACH a.of[part] += b.of[part];
    return a;
}

static inline v16 times(v16 a, v16 b) {
    EACH a.of[part] *= b.of[part];
    return a;
}

static inline v16 scaled(v16 a, float b) {
    EACH a.of[part] *= b;
    return a;
}

/* acc + a b, in one rounding where the processor can */
static inline v16 fused(v16 acc, float a, v16 b) {
    EACH acc.of[part] += a * b.of[part];
    return acc;
}

static inline float sum(v16 x) {
    float total = 0;
    EACH for (int i = 0; i < LANES; i++) total += x.of[part][i];
    return total;
}

/* exp: range reduction by ln 2 in two parts, degree-6 polynomial; 0 below -87, constant above 88. */
static inline vec exponential(vec x) {
    ivec normal = x >= -87.0f, low = x <= 88.0f;
    x = (vec)(((ivec)x & low) | ((ivec)splat(88.0f) & ~low));
    vec clamped = (vec)(((ivec)x & normal) | ((ivec)splat(-87.0f) & ~normal));
    vec n = clamped * 1.44269504088896341f + 12582912.0f;
    n = n - 12582912.0f;
    vec r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return (vec)((ivec)(p * (vec)power) & normal);
}

static inline v16 vexp(v16 x) {
    EACH x.of[part] = exponential(x.of[part]);
    return x;
}

/* --- packed matrix products ------------------------------------------------------------- */

static inline uint32_t rounded_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/* Pack weight [n][k] (row-major) into panels; the last one is filled up with zeros. */
void hr_pack(const float *weight, long n, long k, int bf16, void *packed) {
    long panels = (n + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static)
    for (long p = 0; p < panels; p++) {
        for (long i = 0; i < (bf16 ? k / 2 : k); i++) {
            for (long j = 0; j < PANEL; j++) {
                long row = p * PANEL + j;
                const float *from = weight + row * k;
                if (bf16) {
                    uint32_t low = row < n ? rounded_bf16(from[2 * i]) : 0;
                    uint32_t high = row < n ? rounded_bf16(from[2 * i + 1]) : 0;
                    ((uint32_t *)packed)[(p * (k / 2) + i) * PANEL + j] = low | high << 16;
                } else {
                    ((float *)packed)[(p * k + i) * PANEL + j] = row < n ? from[i] : 0.0f;
                }
            }
        }
    }
}

#define TILE(COUNT)                                                                               \
    static inline void tile_##COUNT(const float *a, long k, const void *panel, int bf16,          \
                                    const char *ahead, long pace, v16 *out) {                     \
        v16 acc[COUNT];                                                                           \
        for (int r = 0; r < COUNT; r++) acc[r] = zero();                                         \
        if (bf16) {                                                                               \
            const uint32_t *w = panel;                                                            \
            for (long i = 0; i < k; i += 2, w += PANEL, ahead += pace) {                          \
                __builtin_prefetch(ahead);                                                        \
                v16 even, odd;                                                                    \
                EACH {                                                                            \
                    uvec pair = *(const uvec *)(w + part * LANES);                                \
                    even.of[part] = (vec)(pair << 16);                                            \
                    odd.of[part] = (vec)(pair & 0xffff0000u);                                     \
                }                                                                                 \
                for (int r = 0; r < COUNT; r++) acc[r] = fused(acc[r], a[r * k + i], even);       \
                for (int r = 0; r < COUNT; r++) acc[r] = fused(acc[r], a[r * k + i + 1], odd);    \
            }                                                                                     \
        } else {                                                                                  \
            const float *w = panel;                                                               \
            for (long i = 0; i < k; i++, w += PANEL, ahead += pace) {                             \
                __builtin_prefetch(ahead);                                                        \
                v16 column = load(w);                                                             \
                for (int r = 0; r < COUNT; r++) acc[r] = fused(acc[r], a[r * k + i], column);     \
            }                                                                                     \
        }                                                                                         \
        for (int r = 0; r < COUNT; r++) out[r] = acc[r];                                          \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

/* While one panel is used, the next is fetched: `ahead` is where, `pace` bytes a step. */
static inline void tile(long rows, const float *a, long k, const void *panel, int bf16,
                        const char *ahead, long pace, v16 *out) {
    switch (rows) {
    case 1: tile_1(a, k, panel, bf16, ahead, pace, out); break;
    case 2: tile_2(a, k, panel, bf16, ahead, pace, out); break;
    case 3: tile_3(a, k, panel, bf16, ahead, pace, out); break;
    case 4: tile_4(a, k, panel, bf16, ahead, pace, out); break;
    case 5: tile_5(a, k, panel, bf16, ahead, pace, out); break;
    default: tile_6(a, k, panel, bf16, ahead, pace, out); break;
    }
}

/* A bf16 panel as fp32, for when many rows will use it. */
static void widen(const uint32_t *pairs, long k, float *wide) {
    for (long i = 0; i < k / 2; i++)
        EACH {
            uvec pair = *(const uvec *)(pairs + i * PANEL + part * LANES);
            *(uvec *)(wide + 2 * i * PANEL + part * LANES) = pair << 16;
            *(uvec *)(wide + (2 * i + 1) * PANEL + part * LANES) = pair & 0xffff0000u;
        }
}

static inline void finish(v16 result, const float *bias, int add, long columns, float *out) {
    float values[PANEL];
    store(values, result);
    for (long c = 0; c < columns; c++) {
        if (bias) values[c] += bias[c];
        out[c] = add ? out[c] + values[c] : values[c];
    }
}

/* out [m][n] = a [m][k] x weight^T (+ bias [n], + what was in out). */
void hr_matmul(const float *a, long m, long k, const void *packed, long n, int bf16,
               const float *bias, int add, float *out) {
    long panels = (n + PANEL - 1) / PANEL;
    long bytes = k * PANEL * (bf16 ? 2 : 4);
    for (long top = 0; top < m; top += STRIP) {
        long bottom = top + STRIP < m ? top + STRIP : m;
#pragma omp parallel for schedule(dynamic, 4)
        for (long p = 0; p < panels; p++) {
            const char *panel = (const char *)packed + p * bytes, *next = panel + bytes;
            long columns = n - p * PANEL < PANEL ? n - p * PANEL : PANEL;
            long tiles = (bottom - top + ROWS - 1) / ROWS;
            float wide[WIDENED * PANEL];
            int widened = bf16 && tiles > 2 && k <= WIDENED;
            if (widened) {
                widen((const uint32_t *)panel, k, wide);
                panel = (const char *)wide;
            }
            for (long t = 0, row = top, rows; t < tiles; t++, row += rows) {
                rows = (bottom - row) / (tiles - t);
                v16 result[ROWS];
                tile(rows, a + row * k, k, panel, bf16 && !widened, next + t * (bytes / tiles),
                     (widened ? 32 : 64) / tiles, result);
                for (long r = 0; r < rows; r++)
                    finish(result[r], bias ? bias + p * PANEL : NULL, add, columns,
                           out + (row + r) * n + p * PANEL);
            }
        }
    }
}

/* --- between the products --------------------------------------------------------------- */

static void normalise(const float *x, long d, const float *weight, float eps, float *out) {
    v16 squares = zero();
    for (long i = 0; i < d; i += 16) squares = plus(squares, times(load(x + i), load(x + i)));
    float scale = 1.0f / sqrtf(sum(squares) / (float)d + eps);
    for (long i = 0; i < d; i += 16)
        store(out + i, times(scaled(load(x + i), scale), load(weight + i)));
}

/* RMSNorm of each of the m rows of x [m][d]; d is a multiple of 16. */
void hr_rmsnorm(const float *x, long m, long d, const float *weight, float eps, float *out) {
#pragma omp parallel for schedule(static) if (m * d > SERIAL)
    for (long i = 0; i < m; i++) normalise(x + i * d, d, weight, eps, out + i * d);
}

/* out [m][f] = silu(gate) * up of gate_up [m][2 f]; f is a multiple of 16. */
void hr_silu_mul(const float *gate_up, long m, long f, float *out) {
#pragma omp parallel for schedule(static) if (m * f > SERIAL)
    for (long i = 0; i < m; i++) {
        const float *gate = gate_up + i * 2 * f, *up = gate + f;
        for (long j = 0; j < f; j += 16) {
            v16 g = load(gate + j), e = vexp(scaled(g, -1.0f));
            EACH g.of[part] /= 1.0f + e.of[part];
            store(out + i * f + j, times(g, load(up + j)));
        }
    }
}

static void rotate(const float *x, long d, const float *cosine, const float *sine, float *out) {
    for (long i = 0; i < d / 2; i++) {
        float left = x[i], right = x[i + d / 2];
        out[i] = left * cosine[i] - right * sine[i];
        out[i + d / 2] = right * cosine[i + d / 2] + left * sine[i + d / 2];
    }
}

/* Rotate queries in place and put keys and values of m tokens into the cache.
 *
 * qkv [m][(heads + 2 kv_heads) d]; cosine, sine [m][d]; slot [m] is block * 16 + offset.
 * query_norm, key_norm [d] are RMSNorm weights by head, or NULL. d is a multiple of 16.
 */
void hr_rotate_store(float *qkv, long m, long heads, long kv_heads, long d, const float *cosine,
                     const float *sine, const float *query_norm, const float *key_norm, float eps,
                     const int64_t *slot, float *keys, float *values) {
#pragma omp parallel for schedule(static) if (m * (heads + kv_heads) * d > SERIAL)
    for (long i = 0; i < m; i++) {
        float *row = qkv + i * (heads + 2 * kv_heads) * d;
        const float *c = cosine + i * d, *s = sine + i * d;
        long block = slot[i] / BLOCK, offset = slot[i] % BLOCK;
        float head[512], turned[512];
        for (long h = 0; h < heads + kv_heads; h++) {
            const float *norm = h < heads ? query_norm : key_norm;
            float *from = row + h * d;
            if (norm) normalise(from, d, norm, eps, head);
            else memcpy(head, from, d * sizeof(float));
            rotate(head, d, c, s, turned);
            if (h < heads) {
                memcpy(from, turned, d * sizeof(float));
            } else {
                float *to = keys + (block * kv_heads + h - heads) * d * BLOCK + offset;
                for (long j = 0; j < d; j++) to[j * BLOCK] = turned[j];
            }
        }
        for (long h = 0; h < kv_heads; h++)
            memcpy(values + ((block * kv_heads + h) * BLOCK + offset) * d,
                   row + (heads + kv_heads + h) * d, d * sizeof(float));
    }
}

/* --- attention -------------------------------------------------------------------------- */

#define GROUP(COUNT)                                                                              \
    static void group_##COUNT(const float *q, long d, const float *keys, const float *values,     \
                              long stride, const int32_t *table, long length, float scaling,      \
                              float *scores, float *out) {                                        \
        long blocks = (length + BLOCK - 1) / BLOCK;                                               \
        float largest[COUNT];                                                                     \
        for (int g = 0; g < COUNT; g++) largest[g] = -INFINITY;                                   \
        for (long b = 0; b < blocks; b++) {                                                       \
            const float *key = keys + table[b] * stride;                                          \
            v16 acc[COUNT];                                                                       \
            for (int g = 0; g < COUNT; g++) acc[g] = zero();                                     \
            for (long i = 0; i < d; i++) {                                                        \
                v16 column = load(key + i * BLOCK);                                               \
                for (int g = 0; g < COUNT; g++) acc[g] = fused(acc[g], q[g * d + i], column);     \
            }                                                                                     \
            long here = length - b * BLOCK < BLOCK ? length - b * BLOCK : BLOCK;                  \
            for (int g = 0; g < COUNT; g++) {                                                     \
                float *to = scores + g * blocks * BLOCK + b * BLOCK;                              \
                store(to, scaled(acc[g], scaling));                                               \
                for (long j = here; j < BLOCK; j++) to[j] = -INFINITY;                            \
                for (long j = 0; j < BLOCK; j++)                                                  \
                    largest[g] = to[j] > largest[g] ? to[j] : largest[g];                         \
            }                                                                                     \
        }                                                                                         \
        float total[COUNT];                                                                       \
        for (int g = 0; g < COUNT; g++) {                                                         \
            v16 mass = zero();                                                                    \
            float *row = scores + g * blocks * BLOCK;                                             \
            for (long b = 0; b < blocks; b++) {                                                   \
                v16 weight = load(row + b * BLOCK);                                               \
                EACH weight.of[part] -= largest[g];                                               \
                weight = vexp(weight);                                                            \
                store(row + b * BLOCK, weight);                                                   \
                mass = plus(mass, weight);                                                        \
            }                                                                                     \
            total[g] = sum(mass);                                                                 \
        }                                                                                         \
        for (long i = 0; i < d; i += 16) {                                                        \
            v16 acc[COUNT];                                                                       \
            for (int g = 0; g < COUNT; g++) acc[g] = zero();                                     \
            for (long b = 0; b < blocks; b++) {                                                   \
                const float *value = values + table[b] * stride + i;                              \
                long here = length - b * BLOCK < BLOCK ? length - b * BLOCK : BLOCK;              \
                for (long j = 0; j < here; j++) {                                                 \
                    v16 slice = load(value + j * d);                                              \
                    for (int g = 0; g < COUNT; g++)                                               \
                        acc[g] = fused(acc[g], scores[(g * blocks + b) * BLOCK + j], slice);      \
                }                                                                                 \
            }                                                                                     \
            for (int g = 0; g < COUNT; g++)                                                       \
                store(out + g * d + i, scaled(acc[g], 1.0f / total[g]));                          \
        }                                                                                         \
    }
GROUP(1)
GROUP(2)
GROUP(3)
GROUP(4)

/* Attention of m tokens, each over the first length[i] positions of table row owner[i].
 *
 * qkv as hr_rotate_store left it; table [.][width] of block numbers; out [m][heads d].
 * scratch holds, for each (token, kv head) pair, room for 4 x 16 x ceil(longest / 16) floats
 * at `spare` floats apart, reused by thread number modulo `lanes`.
 */
void hr_attend(const float *qkv, long m, long heads, long kv_heads, long d, const float *keys,
               const float *values, const int32_t *table, long width, const int64_t *owner,
               const int64_t *length, float scaling, float *scratch, long spare, long lanes,
               float *out) {
    long stride = kv_heads * d * BLOCK, share = heads / kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
    for (long lane = 0; lane < lanes; lane++) {
        float *scores = scratch + lane * spare;
        for (long item = lane; item < m * kv_heads; item += lanes) {
            long i = item / kv_heads, kv = item % kv_heads;
            const int32_t *blocks = table + owner[i] * width;
            const float *k = keys + kv * d * BLOCK, *v = values + kv * d * BLOCK;
            const float *row = qkv + i * (heads + 2 * kv_heads) * d;
            for (long first = 0; first < share; first += 4) {
                long head = kv * share + first;
                long count = share - first < 4 ? share - first : 4;
                const float *q = row + head * d;
                float *to = out + (i * heads + head) * d;
                switch (count) {
                case 1: group_1(q, d, k, v, stride, blocks, length[i], scaling, scores, to); break;
                case 2: group_2(q, d, k, v, stride, blocks, length[i], scaling, scores, to); break;
                case 3: group_3(q, d, k, v, stride, blocks, length[i], scaling, scores, to); break;
                default: group_4(q, d, k, v, stride, blocks, length[i], scaling, scores, to);
                }
            }
        }
    }
}

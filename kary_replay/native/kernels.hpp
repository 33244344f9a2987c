// What the operations of a native program do, for one set of vector instructions.
//
// program.hpp includes this file once for each set, with KARY_SET, the name of a namespace,
// KARY_WIDTH, the numbers in a vector of that set, and KARY_PANEL, the vectors side by side in a
// tile of a product. There is no #pragma once for that reason.
//
// A number of a product is one chain of multiplications and additions in the order of k. Sums of
// numbers side by side are 16 or 32 sums, whatever the set, which are then added in one order. All
// else is done to each number by itself. Products are added to what is no product itself, so that
// the compiler has no choice what to fuse. So the sets that have fused multiplication and addition
// give the same bits.
//
// Vectors are those of the set: what is wider, the compiler takes apart by way of memory.
//
// Threads share what takes longer than to wake one up. They share the numbers of an outcome, never
// the chain of operations behind one of them, so bits do not depend on how many threads there are.

namespace kary::KARY_SET {

typedef float Vector __attribute__((vector_size(4 * KARY_WIDTH)));
typedef Vector Unaligned __attribute__((aligned(4)));
typedef std::int32_t Lanes __attribute__((vector_size(4 * KARY_WIDTH)));
constexpr std::int64_t kWidth = KARY_WIDTH;
constexpr std::int64_t kPanel = KARY_WIDTH * KARY_PANEL;  // columns of a tile
constexpr std::int64_t kRows = 6;                         // of a tile: all of it is in registers
constexpr std::int64_t kOfRow = 8;  // vectors of a single row that are computed together
constexpr std::int64_t kDepth = 256;  // rows of a panel that are used before the next ones
constexpr std::int64_t kSums = 16 / kWidth;  // vectors that a sum of numbers side by side has

constexpr std::int64_t kMuch = 4 << 20;      // multiplications that threads share
constexpr std::int64_t kMany = 1 << 17;      // numbers that threads share, each of little work
constexpr std::int64_t kTogether = 1 << 15;  // of them, done in one go

// Calls part(i, thread) for each i below n.
template <class Part>
KARY_INLINE void share(std::int64_t n, int threads, const Part& part) {
    if (threads > 1) return thread_pool.for_each(n, threads, part);
    for (std::int64_t i = 0; i < n; ++i) part(i, 0);
}

// Calls part(begin, end) for n numbers, or for some of them at a time.
template <class Part>
KARY_INLINE void share_numbers(std::int64_t n, int threads, const Part& part) {
    if (n < kMany || threads < 2) return part(0, n);
    share((n + kTogether - 1) / kTogether, threads, [&](std::int64_t i, int) {
        part(i * kTogether, std::min(n, (i + 1) * kTogether));
    });
}

KARY_INLINE Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
KARY_INLINE void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
KARY_INLINE Vector load_part(const float* from, std::int64_t n) {
    Vector value = {};
    std::memcpy(&value, from, n * sizeof(float));
    return value;
}
KARY_INLINE Vector load_up_to(const float* from, std::int64_t n) {
    return n >= kWidth ? load(from) : n > 0 ? load_part(from, n) : Vector{};
}

// The same, for products: by way of memory, so that no compiler multiplies on each of the ways
// here, apart from the addition, which it then cannot fuse.
KARY_INLINE Vector factor_up_to(const float* from, std::int64_t n) {
    Vector value = load_up_to(from, n);
    __asm__("" : "+m"(value));
    return value;
}

KARY_INLINE void store_up_to(float* to, Vector value, std::int64_t n) {
    if (n >= kWidth)
        store(to, value);
    else
        std::memcpy(to, &value, n * sizeof(float));
}

KARY_INLINE Vector same(float value) { return value - Vector{}; }

KARY_INLINE bool any(Lanes condition) {
    for (int i = 0; i < kWidth; ++i)
        if (condition[i]) return true;
    return false;
}

// ------------------------------------------------------------------------------------- products

// What is done to the numbers of a tile when all of their products are added up, and where they go.
template <int R, int V, bool Whole>
KARY_INLINE void finish(const Product& p, std::int64_t row, std::int64_t column, const float* bias,
                        bool is_last, Vector sum[R][V]) {
    const std::int64_t rest = p.n - column - (V - 1) * kWidth;  // numbers in the last vector
    if (is_last && bias) {
        KARY_UNROLL for (int v = 0; v < V; ++v) {
            const Vector value = load(bias + v * kWidth);
            KARY_UNROLL for (int i = 0; i < R; ++i) sum[i][v] += value;
        }
    }
    if (is_last && p.bias_of_rows)
        KARY_UNROLL for (int i = 0; i < R; ++i)
            KARY_UNROLL for (int v = 0; v < V; ++v) sum[i][v] += same(p.bias[row + i]);
    if (is_last && p.relu) {
        const Vector nothing = same(kNothing);
        KARY_UNROLL for (int i = 0; i < R; ++i)
            KARY_UNROLL for (int v = 0; v < V; ++v)
                sum[i][v] = sum[i][v] < nothing ? nothing : sum[i][v];
    }
    if (is_last && p.mask) {
        KARY_UNROLL for (int i = 0; i < R; ++i) {
            KARY_UNROLL for (int v = 0; v < V; ++v) {
                const float* at = p.mask + (row + i) * p.mask_row + column + v * kWidth;
                const Vector mask = Whole || v < V - 1 ? load(at) : load_part(at, rest);
                sum[i][v] = mask <= 0 ? Vector{} : sum[i][v];
            }
        }
    }
    KARY_UNROLL for (int i = 0; i < R; ++i) {
        KARY_UNROLL for (int v = 0; v < V; ++v) {
            float* to = p.c + (row + i) * p.c_row + column + v * kWidth;
            if (Whole || v < V - 1)
                store(to, sum[i][v]);
            else
                std::memcpy(to, &sum[i][v], rest * sizeof(float));
        }
    }
}

// R rows of V vectors, the last of which has all of its numbers if they are Whole. The numbers of A
// lie in rows, or where the Tables say.
template <int R, int V, bool Whole, bool Tables>
KARY_KERNEL void tile(const Product& p, std::int64_t row, std::int64_t column, std::int64_t begin,
                      std::int64_t depth, const float* b, std::int64_t b_row, const float* bias) {
    const float* a = p.a + row * p.a_row + begin * p.a_column;
    const float* at[R];
    const std::int32_t* const step = Tables ? p.step_at + begin : nullptr;
    if (Tables)
        KARY_UNROLL for (int i = 0; i < R; ++i) at[i] = p.a + p.row_at[row + i];
    Vector sum[R][V];
    KARY_UNROLL for (int i = 0; i < R; ++i) {
        KARY_UNROLL for (int v = 0; v < V; ++v) {
            const float* from = p.c + (row + i) * p.c_row + column + v * kWidth;
            if (begin == 0 && !p.adds)
                sum[i][v] = Vector{};
            else if (Whole || v < V - 1)
                sum[i][v] = load(from);
            else
                sum[i][v] = load_part(from, p.n - column - (V - 1) * kWidth);
        }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
        Vector right[V];
        KARY_UNROLL for (int v = 0; v < V; ++v) right[v] = load(b + k * b_row + v * kWidth);
        KARY_UNROLL for (int i = 0; i < R; ++i) {
            const float number = Tables ? at[i][step[k]] : a[i * p.a_row + k * p.a_column];
            const Vector left = number - Vector{};
            KARY_UNROLL for (int v = 0; v < V; ++v) sum[i][v] += left * right[v];
        }
    }
    finish<R, V, Whole>(p, row, column, bias, begin + depth == p.k, sum);
}

// A product of few steps: B stays in registers from row to row.
template <int K, int V>
KARY_KERNEL void shallow(const Product& p, std::int64_t column, const float* b, std::int64_t b_row,
                         const float* bias) {
    Vector right[K][V];
    KARY_UNROLL for (int k = 0; k < K; ++k)
        KARY_UNROLL for (int v = 0; v < V; ++v) right[k][v] = load(b + k * b_row + v * kWidth);
    for (std::int64_t row = 0; row < p.m; ++row) {
        const float* a = p.a + row * p.a_row;
        Vector sum[1][V] = {};
        KARY_UNROLL for (int k = 0; k < K; ++k) {
            const Vector left = a[k * p.a_column] - Vector{};
            KARY_UNROLL for (int v = 0; v < V; ++v) sum[0][v] += left * right[k][v];
        }
        finish<1, V, true>(p, row, column, bias, true, sum);
    }
}

template <int V, bool Whole, bool Tables>
void rows_of_panel(const Product& p, std::int64_t column, const float* b, std::int64_t b_row,
                   const float* bias) {
    if constexpr (Whole && !Tables && V <= 2) {  // with more, not all are in registers
        switch (p.adds ? 0 : p.k) {
            case 1: return shallow<1, V>(p, column, b, b_row, bias);
            case 2: return shallow<2, V>(p, column, b, b_row, bias);
            case 3: return shallow<3, V>(p, column, b, b_row, bias);
            case 4: return shallow<4, V>(p, column, b, b_row, bias);
            default: break;
        }
    }
    for (std::int64_t begin = 0; begin < p.k; begin += kDepth) {
        const std::int64_t depth = std::min(kDepth, p.k - begin);
        const float* from = b + begin * b_row;
        std::int64_t row = 0;
        for (; row + kRows <= p.m; row += kRows)
            tile<kRows, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
        switch (p.m - row) {
            case 5:
                tile<5, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
                break;
            case 4:
                tile<4, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
                break;
            case 3:
                tile<3, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
                break;
            case 2:
                tile<2, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
                break;
            case 1:
                tile<1, V, Whole, Tables>(p, row, column, begin, depth, from, b_row, bias);
                break;
            default: break;
        }
    }
}

template <int V, bool Tables>
void panel(const Product& p, std::int64_t column) {
    alignas(64) float bias[kPanel] = {};
    const bool has_bias = p.bias && !p.bias_of_rows;
    if (has_bias)
        std::memcpy(bias, p.bias + column, std::min(p.n - column, kPanel) * sizeof(float));
    const float* b = p.b_row ? p.b + column : p.b + column * p.k;
    const std::int64_t b_row = p.b_row ? p.b_row : V * kWidth;
    const float* const row_bias = has_bias ? bias : nullptr;
    if (p.n - column >= V * kWidth)
        rows_of_panel<V, true, Tables>(p, column, b, b_row, row_bias);
    else
        rows_of_panel<V, false, Tables>(p, column, b, b_row, row_bias);
}

// A single row: many columns at once, for each number waits for the one of the step before.
static void multiply_row(const Product& p, std::int64_t column) {
    const float* const bias = p.bias && !p.bias_of_rows ? p.bias + column : nullptr;
    for (std::int64_t begin = 0; begin < p.k; begin += kDepth) {
        const std::int64_t depth = std::min(kDepth, p.k - begin);
        const float* const b = p.b + column + begin * p.b_row;
        tile<1, kOfRow, true, false>(p, 0, column, begin, depth, b, p.b_row, bias);
    }
}

template <bool Tables>
void multiply_panel(const Product& p, std::int64_t column) {
    const std::int64_t vectors = (std::min(p.n - column, kPanel) + kWidth - 1) / kWidth;
    switch (vectors) {
        case 1: panel<1, Tables>(p, column); break;
#if KARY_PANEL == 2
        default: panel<2, Tables>(p, column); break;
#else
        case 2: panel<2, Tables>(p, column); break;
        case 3: panel<3, Tables>(p, column); break;
        default: panel<4, Tables>(p, column); break;
#endif
    }
}

// Rows that lie where the Tables say.
static void multiply_windows(const Product& p) {
    for (std::int64_t column = 0; column < p.n; column += kPanel) multiply_panel<true>(p, column);
}

static void multiply_rows(const Product& p, int threads) {
    std::int64_t first = 0;
    if (p.m == 1 && p.b_row)
        for (; first + kOfRow * kWidth <= p.n; first += kOfRow * kWidth) multiply_row(p, first);
    const std::int64_t panels = (p.n - first + kPanel - 1) / kPanel;
    if (!panels) return;
    if (p.m * p.n * p.k < kMuch) threads = 1;
    // Of each panel, threads share the rows if there are fewer panels than threads.
    const std::int64_t groups = panels < threads ? (threads + panels - 1) / panels : 1;
    const std::int64_t rows = (p.m + groups * kRows - 1) / (groups * kRows) * kRows;
    share(panels * groups, threads, [&](std::int64_t i, int) {
        const std::int64_t row = i % groups * rows;
        if (row >= p.m) return;
        Product q = p;
        q.m = std::min(rows, p.m - row);
        q.a += row * p.a_row, q.c += row * p.c_row;
        if (p.mask) q.mask += row * p.mask_row;
        if (p.bias_of_rows) q.bias += row;
        multiply_panel<false>(q, first + i / groups * kPanel);
    });
}

KARY_INLINE bool is_zero(const float* row, std::int64_t n) {
    for (std::int64_t i = 0; i < std::min(n, kWidth); ++i)
        if (row[i] != 0) return false;
    Lanes differs = {};
    for (std::int64_t i = 0; i < n; i += kWidth)
        differs |= (Lanes)(load_up_to(row + i, n - i) != 0);
    return !any(differs);
}

// Whether all numbers of B are finite: 0 times another one is not 0.
static bool is_finite(const Product& p) {
    const bool is_packed = p.b_row == 0;
    const std::int64_t n = is_packed ? p.k * ((p.n + kWidth - 1) / kWidth * kWidth) : p.n;
    Lanes differs = {};
    for (std::int64_t row = 0; row < (is_packed ? 1 : p.k); ++row)
        for (std::int64_t i = 0; i < n; i += kWidth)
            differs |= (Lanes)(load_up_to(p.b + row * p.b_row + i, n - i) * 0.0f != 0);
    return !any(differs);
}

// Leaves out the rows of A that are 0 if those are many, as in the gradient of the lesser of two
// critics. The others are moved together, and their products then to where they belong.
static void multiply(const Product& p, int threads) {
    if (!p.spare) return multiply_rows(p, threads);
    std::int32_t* const kept = reinterpret_cast<std::int32_t*>(p.spare + p.m * p.k);
    std::int64_t n_kept = 0;
    for (std::int64_t row = 0; row < p.m; ++row)
        if (!is_zero(p.a + row * p.a_row, p.k)) kept[n_kept++] = std::int32_t(row);
    if (n_kept > p.m - p.m / 8 || !is_finite(p)) return multiply_rows(p, threads);
    for (std::int64_t i = 0; i < n_kept; ++i)
        std::memcpy(p.spare + i * p.k, p.a + kept[i] * p.a_row, p.k * sizeof(float));
    Product q = p;
    q.a = p.spare, q.a_row = p.k, q.m = n_kept, q.mask = nullptr;
    multiply_rows(q, threads);
    std::int64_t end = p.m;
    for (std::int64_t i = n_kept - 1; i >= -1; --i) {
        const std::int64_t row = i < 0 ? -1 : kept[i];
        for (std::int64_t r = row + 1; r < end; ++r)
            std::memset(p.c + r * p.c_row, 0, p.n * sizeof(float));
        if (i < 0) break;
        const float *from = p.c + i * p.c_row, *mask = p.mask + row * p.mask_row;
        float* const to = p.c + row * p.c_row;
        for (std::int64_t j = 0; j < p.n; j += kWidth) {
            const Vector value = load_up_to(from + j, p.n - j);
            store_up_to(to + j, load_up_to(mask + j, p.n - j) <= 0 ? Vector{} : value, p.n - j);
        }
        end = row;
    }
}

// Rows become columns.
KARY_INLINE void transpose(Vector rows[kWidth]) {
#if KARY_WIDTH == 8
    // Every step here is one instruction: pairs, fours, and then halves are brought together.
    Vector pairs[8], fours[8];
    KARY_UNROLL for (int i = 0; i < 8; i += 2) {
        pairs[i] = KARY_SHUFFLE(Lanes, rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = KARY_SHUFFLE(Lanes, rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    KARY_UNROLL for (int i = 0; i < 8; i += 4) {
        KARY_UNROLL for (int j = 0; j < 2; ++j) {
            const Vector one = pairs[i + j], two = pairs[i + j + 2];
            fours[i + 2 * j] = KARY_SHUFFLE(Lanes, one, two, 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + 2 * j + 1] = KARY_SHUFFLE(Lanes, one, two, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    KARY_UNROLL for (int i = 0; i < 4; ++i) {
        rows[i] = KARY_SHUFFLE(Lanes, fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = KARY_SHUFFLE(Lanes, fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    // Each stage interleaves the first half of the rows with the second.
    for (int stage = 1; stage < kWidth; stage *= 2) {
        Vector next[kWidth];
        KARY_UNROLL for (int i = 0; i < kWidth / 2; ++i) {
            const Vector one = rows[i], two = rows[i + kWidth / 2];
#if KARY_WIDTH == 16
            next[2 * i] = KARY_SHUFFLE(Lanes, one, two, 0, 16, 1, 17, 2, 18, 3, 19,  //
                                       4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] = KARY_SHUFFLE(Lanes, one, two, 8, 24, 9, 25, 10, 26, 11, 27,  //
                                           12, 28, 13, 29, 14, 30, 15, 31);
#else
            next[2 * i] = KARY_SHUFFLE(Lanes, one, two, 0, 4, 1, 5);
            next[2 * i + 1] = KARY_SHUFFLE(Lanes, one, two, 2, 6, 3, 7);
#endif
        }
        KARY_UNROLL for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
    }
#endif
}

// to[j][i] = from[i][j] for i < n_rows, j < n_columns; rows of `from` and of `to` are contiguous.
static void transposed(const float* from, std::int64_t from_row, std::int64_t n_rows,
                       std::int64_t n_columns, float* to, std::int64_t to_row) {
    std::int64_t i = 0;
    for (; i + kWidth <= n_rows; i += kWidth) {
        std::int64_t j = 0;
        for (; j + kWidth <= n_columns; j += kWidth) {
            Vector rows[kWidth];
            const float* at = from + i * from_row + j;
            KARY_UNROLL for (int r = 0; r < kWidth; ++r) rows[r] = load(at + r * from_row);
            transpose(rows);
            KARY_UNROLL for (int r = 0; r < kWidth; ++r) store(to + (j + r) * to_row + i, rows[r]);
        }
        for (; j < n_columns; ++j)
            for (int r = 0; r < kWidth; ++r) to[j * to_row + i + r] = from[(i + r) * from_row + j];
    }
    const std::int64_t rest = n_rows - i;
    for (std::int64_t j = 0; j < n_columns; ++j)
        for (std::int64_t r = i; r < i + rest; ++r) to[j * to_row + r] = from[r * from_row + j];
}

// Packs B (k × n) for `multiply`. What is between the last column and the next whole vector is 0.
static void pack(const float* b, std::int64_t row, std::int64_t column, std::int64_t k,
                 std::int64_t n, float* to, int threads) {
    share((n + kPanel - 1) / kPanel, k * n >= kMany ? threads : 1, [&](std::int64_t part, int) {
        const std::int64_t first = part * kPanel, columns = std::min(kPanel, n - first);
        const std::int64_t width = (columns + kWidth - 1) / kWidth * kWidth;
        const float* from = b + first * column;
        float* panel = to + first * k;
        if (width > columns)
            for (std::int64_t i = 0; i < k; ++i)
                std::memset(panel + i * width + columns, 0, (width - columns) * sizeof(float));
        if (row == 1) return transposed(from, column, columns, k, panel, width);
        for (std::int64_t i = 0; i < k; ++i) {
            if (column == 1)
                std::memcpy(panel + i * width, from + i * row, columns * sizeof(float));
            else
                for (std::int64_t j = 0; j < columns; ++j)
                    panel[i * width + j] = from[i * row + j * column];
        }
    });
}

// The sum of N vectors: their second half is added to the first one, again and again.
template <int N>
KARY_INLINE float sum_of(Vector sums[N]) {
    KARY_UNROLL for (int n = N / 2; n > 0; n /= 2)
        KARY_UNROLL for (int v = 0; v < n; ++v) sums[v] += sums[v + n];
    Vector value = sums[0];
#if KARY_WIDTH == 16
    value += KARY_SHUFFLE(Lanes, value, value, 8, 9, 10, 11, 12, 13, 14, 15,  //
                          0, 1, 2, 3, 4, 5, 6, 7);
    value += KARY_SHUFFLE(Lanes, value, value, 4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    value += KARY_SHUFFLE(Lanes, value, value, 2, 3, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1);
#elif KARY_WIDTH == 8
    value += KARY_SHUFFLE(Lanes, value, value, 4, 5, 6, 7, 0, 1, 2, 3);
    value += KARY_SHUFFLE(Lanes, value, value, 2, 3, 0, 1, 0, 1, 0, 1);
#else
    value += KARY_SHUFFLE(Lanes, value, value, 2, 3, 0, 1);
#endif
    return value[0] + value[1];
}

// Of R rows, of n numbers each, the products with those of b, added up to one vector.
template <int R>
KARY_INLINE void products_of(const float* a, std::int64_t a_row, const float* b, std::int64_t n,
                             Vector value[R]) {
    constexpr std::int64_t step = 2 * kSums * kWidth;
    Vector sums[R][2 * kSums];
    KARY_UNROLL for (int r = 0; r < R; ++r)
        KARY_UNROLL for (int v = 0; v < 2 * kSums; ++v) sums[r][v] = Vector{};
    std::int64_t i = 0;
    for (; i + step <= n; i += step)
        KARY_UNROLL for (int v = 0; v < 2 * kSums; ++v) {
            const Vector other = load(b + i + v * kWidth);
            KARY_UNROLL for (int r = 0; r < R; ++r)
                sums[r][v] += load(a + r * a_row + i + v * kWidth) * other;
        }
    for (; i < n; i += step / 2)
        KARY_UNROLL for (int v = 0; v < kSums; ++v) {
            const std::int64_t at = i + v * kWidth;
            const Vector other = factor_up_to(b + at, n - at);
            KARY_UNROLL for (int r = 0; r < R; ++r)
                sums[r][v] += factor_up_to(a + r * a_row + at, n - at) * other;
        }
    KARY_UNROLL for (int r = 0; r < R; ++r) {
        KARY_UNROLL for (int half = kSums; half > 0; half /= 2)
            KARY_UNROLL for (int v = 0; v < half; ++v) sums[r][v] += sums[r][v + half];
        value[r] = sums[r][0];
    }
}

KARY_INLINE float dot(const float* a, const float* b, std::int64_t n) {
    Vector value[1];
    products_of<1>(a, 0, b, n, value);
    return sum_of<1>(value);
}

// The sums of as many vectors as one has numbers. Each stage adds the halves of what is left of
// each to one another, in the order of `sum_of`, and brings two vectors together in one.
KARY_INLINE Vector sums_of(Vector of[kWidth]) {
#if KARY_WIDTH == 16
    KARY_UNROLL for (int i = 0; i < 8; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7,  //
                             16, 17, 18, 19, 20, 21, 22, 23) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15,  //
                             24, 25, 26, 27, 28, 29, 30, 31);
    KARY_UNROLL for (int i = 0; i < 4; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11,  //
                             16, 17, 18, 19, 24, 25, 26, 27) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15,  //
                             20, 21, 22, 23, 28, 29, 30, 31);
    KARY_UNROLL for (int i = 0; i < 2; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13,  //
                             16, 17, 20, 21, 24, 25, 28, 29) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15,  //
                             18, 19, 22, 23, 26, 27, 30, 31);
    return KARY_SHUFFLE(Lanes, of[0], of[1], 0, 2, 4, 6, 8, 10, 12, 14,  //
                        16, 18, 20, 22, 24, 26, 28, 30) +
           KARY_SHUFFLE(Lanes, of[0], of[1], 1, 3, 5, 7, 9, 11, 13, 15,  //
                        17, 19, 21, 23, 25, 27, 29, 31);
#elif KARY_WIDTH == 8
    KARY_UNROLL for (int i = 0; i < 4; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
    KARY_UNROLL for (int i = 0; i < 2; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15);
    return KARY_SHUFFLE(Lanes, of[0], of[1], 0, 2, 4, 6, 8, 10, 12, 14) +
           KARY_SHUFFLE(Lanes, of[0], of[1], 1, 3, 5, 7, 9, 11, 13, 15);
#else
    KARY_UNROLL for (int i = 0; i < 2; ++i)
        of[i] = KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 0, 1, 4, 5) +
                KARY_SHUFFLE(Lanes, of[2 * i], of[2 * i + 1], 2, 3, 6, 7);
    return KARY_SHUFFLE(Lanes, of[0], of[1], 0, 2, 4, 6) +
           KARY_SHUFFLE(Lanes, of[0], of[1], 1, 3, 5, 7);
#endif
}

// ------------------------------------------------------------------------------------ functions
// Cephes' polynomials (Moshier, https://www.netlib.org/cephes/), within 2 units in the last place.

KARY_INLINE Vector exponential(Vector x) {
    Vector bounded = x > 89.0f ? same(89.0f) : x;
    bounded = bounded < -104.0f ? same(-104.0f) : bounded;
    const Vector scaled = bounded * 1.44269504088896341f;
    const Lanes n = __builtin_convertvector(scaled + (scaled < 0 ? same(-0.5f) : same(0.5f)),
                                                Lanes);
    const Vector whole = __builtin_convertvector(n, Vector);
    const Vector r = (bounded - whole * 0.693359375f) - whole * -2.12194440e-4f;
    Vector y = same(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    // in two factors, so that results below the smallest normal number, and 2^128, come out right
    const Lanes half = n >> 1;
    const Vector result = y * (Vector)((half + 127) << 23) * (Vector)((n - half + 127) << 23);
    return x != x ? x : result;
}

KARY_INLINE Vector logarithm(Vector x) {
    const Vector scale = x < 1.17549435e-38f ? same(8388608.0f) : same(1.0f);
    const Vector normal = x * scale;
    Lanes bits = (Lanes)normal;
    Lanes exponent = ((bits >> 23) & 255) - 126;
    Vector m = (Vector)((bits & 0x007fffff) | 0x3f000000);  // 0.5 to 1
    const Lanes small = (Lanes)(m < 0.707106781186547524f);
    exponent += small;  // which is -1 where it holds
    m = (m < 0.707106781186547524f ? m + m : m) - 1.0f;
    Vector e = __builtin_convertvector(exponent, Vector);
    e = x < 1.17549435e-38f ? e - 23.0f : e;
    const Vector z = m * m;
    Vector y = same(7.0376836292e-2f);
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    Vector result = z * (y * m - 0.5f) + m;
    result = result + e * -2.12194440e-4f;
    result = result + e * 0.693359375f;
    const float infinity = __builtin_inff();
    result = x == infinity ? x : result;
    result = x == 0 ? same(-infinity) : result;
    result = x < 0 ? same(__builtin_nanf("")) : result;
    return x != x ? x : result;
}

KARY_INLINE Vector magnitude(Vector x) { return (Vector)((Lanes)x & 0x7fffffff); }

KARY_INLINE Vector hyperbolic_tangent(Vector x) {
    const Vector size = magnitude(x);
    const Vector z = x * x;
    Vector y = same(-5.70498872745e-3f);
    y = y * z + 2.06390887954e-2f;
    y = y * z - 5.37397155531e-2f;
    y = y * z + 1.33314422036e-1f;
    y = y * z - 3.33332819422e-1f;
    const Vector near = y * z * x + x;
    const Vector far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    return size < 0.625f ? near : (Vector)((Lanes)far | ((Lanes)x & (-2147483647 - 1)));
}

// log(1 + exp(x)), where nothing is lost if exp(x) is small
KARY_INLINE Vector softplus(Vector x) {
    const Vector y = exponential(x > 20.0f ? same(20.0f) : x);
    const Vector u = y + 1.0f;
    const Vector result = logarithm(u) + (y - (u - 1.0f)) / u;
    return x > 20.0f ? x : result;
}

KARY_INLINE Vector square_root(Vector x) {
    float lanes[kWidth];
    store(lanes, x);
    for (int i = 0; i < kWidth; ++i) lanes[i] = __builtin_sqrtf(lanes[i]);
    return load(lanes);
}

KARY_INLINE Vector one_where(Lanes condition) {
    return (Vector)(condition & (Lanes)same(1.0f));
}

// ------------------------------------------------------------------------------------ each number

// to[i] = f(a[i], b[i], c[i]); an operand with step 0 is one number for all i.
template <class Function>
KARY_INLINE void each(const Elementwise& e, Function function) {
    const float* const given[3] = {e.a, e.b, e.c};
    const std::int64_t step[3] = {e.a_step, e.b_step, e.c_step};
    float numbers[3][kWidth];
    const float* from[3];
    std::int64_t moves[3];  // 0 or 1
    for (int o = 0; o < 3; ++o) {
        moves[o] = given[o] && step[o];
        from[o] = moves[o] ? given[o] : numbers[o];
        store(numbers[o], same(given[o] ? *given[o] : 0.0f));
    }
    std::int64_t i = 0;
    for (; i + kWidth <= e.n; i += kWidth)
        store(e.to + i, function(load(from[0] + moves[0] * i), load(from[1] + moves[1] * i),
                                 load(from[2] + moves[2] * i)));
    if (i == e.n) return;
    Vector x[3];
    for (int o = 0; o < 3; ++o)
        x[o] = moves[o] ? load_part(from[o] + i, e.n - i) : load(numbers[o]);
    store_up_to(e.to + i, function(x[0], x[1], x[2]), e.n - i);
}

static void elementwise_part(Code code, const Elementwise& e) {
    const float s = e.first, t = e.second;
    switch (code) {
#define KARY_EACH(name, expression) \
    case Code::name: each(e, [=](Vector a, Vector b, Vector c) -> Vector { \
        (void)a; (void)b; (void)c; return expression; }); break;
        KARY_EACH(kAdd, a + b)
        KARY_EACH(kSubtract, a - b)
        KARY_EACH(kMultiply, a * b)
        KARY_EACH(kDivide, a / b)
        KARY_EACH(kAddNumber, a + s)
        KARY_EACH(kMultiplyNumber, a * s)
        KARY_EACH(kDivideNumber, a / s)
        KARY_EACH(kNumberMinus, s - a)
        KARY_EACH(kNegate, -a)
        KARY_EACH(kMagnitude, magnitude(a))
        KARY_EACH(kSquare, a * a)
        KARY_EACH(kReciprocal, 1.0f / a)
        KARY_EACH(kExponential, exponential(a))
        KARY_EACH(kLogarithm, logarithm(a))
        KARY_EACH(kTangent, hyperbolic_tangent(a))
        KARY_EACH(kSoftplus, softplus(a))
        KARY_EACH(kRelu, a < 0 ? Vector{} : a)
        KARY_EACH(kAtLeast, a < s ? same(s) : a)
        KARY_EACH(kAtMost, a > s ? same(s) : a)
        KARY_EACH(kBetween, (a < s ? same(s) : a) > t ? same(t) : (a < s ? same(s) : a))
        KARY_EACH(kEqual, one_where(a == b))
        KARY_EACH(kNotBelowNumber, one_where(a >= s))
        KARY_EACH(kNotAboveNumber, one_where(a <= s))
        KARY_EACH(kWhere, a != 0 ? b : c)
        KARY_EACH(kThresholdGradient, b <= s ? Vector{} : a)
        KARY_EACH(kTangentGradient, a * (1.0f - b * b))
        KARY_EACH(kSquaredErrorGradient, s * (b - c) * a)
        // softplus' = z / (1 + z) with z = exp(x), as 1 / (1 + exp(-x)), which cannot overflow
        KARY_EACH(kSoftplusGradient, b > 20.0f ? a : a / (1.0f + exponential(-b)))
        KARY_EACH(kHuberGradient, (b - c <= -s ? same(-s) : b - c >= s ? same(s) : b - c) * (a * t))
#undef KARY_EACH
        default: break;
    }
}

static void elementwise(Code code, const Elementwise& e, int threads) {
    share_numbers(e.n, threads, [&](std::int64_t begin, std::int64_t end) {
        Elementwise part = e;
        part.to += begin, part.n = end - begin;
        if (e.a) part.a += begin * e.a_step;
        if (e.b) part.b += begin * e.b_step;
        if (e.c) part.c += begin * e.c_step;
        elementwise_part(code, part);
    });
}

// ----------------------------------------------------------------------------------- the optimizer

static void adam_part(const Adam& a, std::int64_t begin, std::int64_t end) {
    const Vector rest_1 = same(a.rest_1), rest_2 = same(a.rest_2);
    const Vector root = same(a.root), epsilon = same(a.epsilon), size = same(a.step_size);
    for (std::int64_t i = begin; i < end; i += kWidth) {
        const std::int64_t rest = end - i;
        const Vector gradient = load_up_to(a.gradient + i, rest);
        Vector mean = load_up_to(a.mean + i, rest);
        mean += rest_1 * (gradient - mean);
        Vector square = load_up_to(a.square + i, rest);
        square += rest_2 * (gradient * gradient - square);
        const Vector step = size * mean / (square_root(square) * root + epsilon);
        store_up_to(a.mean + i, mean, rest);
        store_up_to(a.square + i, square, rest);
        store_up_to(a.parameters + i, load_up_to(a.parameters + i, rest) - step, rest);
    }
}

// Parameters of units that are always off get no gradient any more, so their means decay for ever.
static void adam(const Adam& a, int threads) {
    const Flushing flushing;
    share_numbers(a.n, threads,
                  [&](std::int64_t begin, std::int64_t end) { adam_part(a, begin, end); });
}

// to += way * (from - to); all of the way copies
static void approach(float* to, const float* from, std::int64_t n, float way, int threads) {
    share_numbers(n, threads, [=](std::int64_t begin, std::int64_t end) {
        if (way < 0.5f)
            for (std::int64_t i = begin; i < end; ++i) to[i] += way * (from[i] - to[i]);
        else
            for (std::int64_t i = begin; i < end; ++i)
                to[i] = from[i] - (from[i] - to[i]) * (1.0f - way);
    });
}

// -------------------------------------------------------------------------------------- reductions

template <bool kLeast>
KARY_INLINE Vector extreme(Vector so_far, Vector value) {
    const Lanes better = kLeast ? (Lanes)(value < so_far) : (Lanes)(value > so_far);
    return (better | (Lanes)(value != value)) ? value : so_far;  // no number is kept
}

KARY_INLINE float extreme(Code code, float so_far, float value) {
    const bool better = code == Code::kLeast ? value < so_far : value > so_far;
    return better || value != value ? value : so_far;
}

// the sum, least or greatest of n numbers side by side
KARY_INLINE float reduce_row(Code code, const float* from, std::int64_t n) {
    float value = from[0];
    std::int64_t i = 1;
    if (code != Code::kSum && code != Code::kMean) {
        for (; i < n; ++i) value = extreme(code, value, from[i]);
        return value;
    }
    constexpr std::int64_t step = kSums * kWidth;
    if (n >= step) {
        Vector sums[kSums];
        KARY_UNROLL for (int v = 0; v < kSums; ++v) sums[v] = load(from + v * kWidth);
        for (i = step; i + step <= n; i += step)
            KARY_UNROLL for (int v = 0; v < kSums; ++v) sums[v] += load(from + i + v * kWidth);
        value = sum_of<kSums>(sums);
    }
    for (; i < n; ++i) value += from[i];
    return value;
}

// the same of n rows, for some vectors of columns
template <int V>
KARY_INLINE void reduce_columns(Code code, const Reduction& d, const float* from, float* to) {
    Vector value[V];
    KARY_UNROLL for (int v = 0; v < V; ++v) value[v] = load(from + v * kWidth);
    for (std::int64_t r = 1; r < d.n; ++r)
        KARY_UNROLL for (int v = 0; v < V; ++v) {
            const Vector next = load(from + r * d.inner + v * kWidth);
            value[v] = code == Code::kLeast      ? extreme<true>(value[v], next)
                       : code == Code::kGreatest ? extreme<false>(value[v], next)
                                                 : value[v] + next;
        }
    KARY_UNROLL for (int v = 0; v < V; ++v) store(to + v * kWidth, value[v]);
}

template <Code code>
void reduce(const Reduction& d) {
    for (std::int64_t o = 0; o < d.outer; ++o) {
        const float* const from = d.from + o * d.n * d.inner;
        float* const to = d.to + o * d.inner;
        if (d.inner == 1) {
            *to = reduce_row(code, from, d.n);
        } else {
            std::int64_t i = 0;
            for (; i + 4 * kWidth <= d.inner; i += 4 * kWidth)
                reduce_columns<4>(code, d, from + i, to + i);
            for (; i + kWidth <= d.inner; i += kWidth) reduce_columns<1>(code, d, from + i, to + i);
            const std::int64_t rest = d.inner - i;
            for (std::int64_t j = i; j < i + rest; ++j) to[j] = from[j];
            for (std::int64_t r = 1; r < d.n; ++r)
                for (std::int64_t j = i; j < i + rest; ++j) {
                    const float next = from[r * d.inner + j];
                    to[j] = code == Code::kSum || code == Code::kMean
                                ? to[j] + next
                                : extreme(code, to[j], next);
                }
        }
        if (code == Code::kMean)
            for (std::int64_t i = 0; i < d.inner; ++i) to[i] /= float(d.n);
    }
}

// --------------------------------------------------------------------------------- convolutions
// By products, image by image. What a window sees is not copied: tables say where its numbers are.

struct Tables {
    std::int32_t *places, *weights;  // where a window begins, and where its numbers are from there
    float* rest;                     // of the spare memory
};

static Tables tables_of(const Convolution& c) {
    std::int32_t* const places = reinterpret_cast<std::int32_t*>(c.spare);
    std::int32_t* const weights = places + c.n_places();
    std::int64_t n = 0;
    for (std::int64_t row = 0; row < c.rows(); ++row)
        for (std::int64_t column = 0; column < c.columns(); ++column)
            places[n++] = std::int32_t(row * c.step[0] * c.width + column * c.step[1]);
    n = 0;
    for (std::int64_t channel = 0; channel < c.channels; ++channel)
        for (std::int64_t i = 0; i < c.window[0]; ++i)
            for (std::int64_t j = 0; j < c.window[1]; ++j)
                weights[n++] = std::int32_t((channel * c.height + i) * c.width + j);
    return {places, weights, c.spare + c.n_places() + c.n_weights()};
}

KARY_INLINE std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }

static void convolve(const Convolution& c) {
    const std::int64_t n = c.n_places(), k = c.n_weights(), m = c.outputs;
    const Tables t = tables_of(c);
    float *const windows = t.rest, *const outcomes = windows + k * padded(m);  // of threads, [n][m]
    pack(c.two, 1, k, k, m, windows, 1);
    share(c.batch, c.threads, [&](std::int64_t i, int thread) {
        float* const outcome = outcomes + thread * n * m;
        multiply_windows({c.one + i * c.n_image(), 0, 0, windows, 0, outcome, m, c.bias, nullptr, 0,
                          c.relu, n, m, k, nullptr, false, false, t.places, t.weights});
        transposed(outcome, m, n, m, c.to + i * m * n, n);
    });
}

// The gradient of the windows, and of their biases, by that of the outcome. Threads share the
// numbers of a window: each adds up those of all images.
static void convolve_weights(const Convolution& c) {
    const std::int64_t n = c.n_places(), k = c.n_weights(), m = c.outputs;
    const Tables t = tables_of(c);
    float *const sums = t.rest, *const gradients = sums + k * m;  // [k][m]; of threads, [n][m]
    share(c.threads, c.threads, [&](std::int64_t part, int thread) {
        const std::int64_t first = part * k / c.threads, rows = (part + 1) * k / c.threads - first;
        float *const gradient = gradients + thread * n * padded(m), *const sum = sums + first * m;
        std::memset(sum, 0, rows * m * sizeof(float));
        Product p = {c.two, 0, 0, gradient, 0, sum, m, nullptr, nullptr, 0, false, rows, m, n,
                     nullptr, false, true, t.weights + first, t.places};
        for (std::int64_t i = 0; i < c.batch; ++i, p.a += c.n_image()) {
            pack(c.one + i * m * n, 1, n, n, m, gradient, 1);
            multiply_windows(p);
        }
    });
    transposed(sums, m, k, m, c.to, k);
    if (!c.bias) return;
    for (std::int64_t o = 0; o < m; ++o) {
        c.bias[o] = 0;
        for (std::int64_t i = 0; i < c.batch; ++i)
            c.bias[o] += reduce_row(Code::kSum, c.one + (i * m + o) * n, n);
    }
}

KARY_INLINE void add_row(const float* from, float* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kWidth)
        store_up_to(to + i, load_up_to(to + i, n - i) + load_up_to(from + i, n - i), n - i);
}

// The gradient of the images. Here the channels of a point lie side by side, in the windows and in
// the image that they are added up in, so that a row of a window is added to one piece of memory.
static void convolve_inputs(const Convolution& c) {
    const std::int64_t n = c.n_places(), k = c.n_weights(), m = c.outputs;
    const std::int64_t n_points = c.height * c.width, n_seen = c.window[0] * c.window[1];
    const std::int64_t n_outcome = std::max(m, n) * k;
    // of threads: an image and an outcome, [n][k]
    float *const windows = c.spare, *const rest = windows + m * padded(k);
    // before that, the windows with their channels side by side, [m][k]
    float* const sorted = rest;
    for (std::int64_t o = 0; o < m; ++o)
        transposed(c.two + o * k, n_seen, c.channels, n_seen, sorted + o * k, c.channels);
    pack(sorted, k, 1, m, k, windows, 1);
    share(c.batch, c.threads, [&](std::int64_t i, int thread) {
        float* const image = rest + thread * (c.n_image() + n_outcome);
        float* const outcome = image + c.n_image();
        multiply_rows({c.one + i * m * n, 1, n, windows, 0, outcome, k, nullptr, nullptr, 0, false,
                       n, k, m, nullptr}, 1);
        std::memset(image, 0, c.n_image() * sizeof(float));
        const float* from = outcome;
        for (std::int64_t row = 0; row < c.rows(); ++row)
            for (std::int64_t column = 0; column < c.columns(); ++column) {
                const std::int64_t point = row * c.step[0] * c.width + column * c.step[1];
                float* to = image + point * c.channels;
                for (std::int64_t j = 0; j < c.window[0]; ++j, to += c.width * c.channels) {
                    add_row(from, to, c.window[1] * c.channels);
                    from += c.window[1] * c.channels;
                }
            }
        transposed(image, c.channels, n_points, c.channels, c.to + i * c.n_image(), n_points);
    });
}

// -------------------------------------------------------------------------------------- rows

// A number of each of some rows, and back: the last row stands for those that there are not.
KARY_INLINE Vector column_of(const float* from, std::int64_t width, std::int64_t n_rows) {
    Vector value = {};
    KARY_UNROLL for (int i = 0; i < kWidth; ++i)
        value[i] = from[std::min<std::int64_t>(i, n_rows - 1) * width];
    return value;
}

KARY_INLINE void set_column(float* to, Vector value, std::int64_t width, std::int64_t n_rows) {
    KARY_UNROLL for (int i = 0; i < kWidth; ++i)
        if (i < n_rows) to[i * width] = value[i];
}

// A vector has a number of each of its rows, so that narrow rows take no longer than wide ones.
static void softmax(const Rows& r) {
    for (std::int64_t row = 0; row < r.n; row += kWidth) {
        const std::int64_t n = std::min(kWidth, r.n - row);
        const float* const from = r.from + row * r.width;
        float* const to = r.to + row * r.width;
        Vector greatest = column_of(from, r.width, n);
        for (std::int64_t i = 1; i < r.width; ++i)
            greatest = extreme<false>(greatest, column_of(from + i, r.width, n));
        Vector total = {};
        for (std::int64_t i = 0; i < r.width; ++i) {
            const Vector shifted = column_of(from + i, r.width, n) - greatest;
            const Vector power = exponential(shifted);
            total += power;
            set_column(to + i, r.logarithmic ? shifted : power, r.width, n);
        }
        const Vector last = r.logarithmic ? logarithm(total) : total;
        for (std::int64_t i = 0; i < r.width; ++i) {
            const Vector value = column_of(to + i, r.width, n);
            set_column(to + i, r.logarithmic ? value - last : value / last, r.width, n);
        }
    }
}

// the gradient of a logarithmic softmax, by that of its outcome (`from`), and its outcome
static void softmax_gradient(const Rows& r) {
    for (std::int64_t row = 0; row < r.n; row += kWidth) {
        const std::int64_t n = std::min(kWidth, r.n - row), first = row * r.width;
        const float *const gradient = r.from + first, *const outcome = r.other + first;
        Vector total = {};
        for (std::int64_t i = 0; i < r.width; ++i) total += column_of(gradient + i, r.width, n);
        for (std::int64_t i = 0; i < r.width; ++i) {
            const Vector power = exponential(column_of(outcome + i, r.width, n));
            const Vector value = column_of(gradient + i, r.width, n) - power * total;
            set_column(r.to + first + i, value, r.width, n);
        }
    }
}

// ------------------------------------------------------------------------------------ the program

typedef float Four __attribute__((vector_size(16)));

// Copies a row of at least one vector; the last two overlap.
template <class Numbers>
KARY_INLINE void copy_row(const float* from, float* to, std::int64_t n) {
    constexpr std::int64_t size = sizeof(Numbers) / sizeof(float);
    Numbers value;
    for (std::int64_t i = 0; i + size < n; i += size) {
        std::memcpy(&value, from + i, sizeof value);
        std::memcpy(to + i, &value, sizeof value);
    }
    std::memcpy(&value, from + n - size, sizeof value);
    std::memcpy(to + n - size, &value, sizeof value);
}

// Copies between places of any strides.
static void copy(const Copy& c) {
    for (std::int64_t i = 0; i < c.shape[0]; ++i)
        for (std::int64_t j = 0; j < c.shape[1]; ++j) {
            const float* from = c.from + i * c.from_step[0] + j * c.from_step[1];
            float* to = c.to + i * c.to_step[0] + j * c.to_step[1];
            const std::int64_t n = c.shape[2], m = c.shape[3];
            if (c.from_step[2] == 1 && c.to_step[3] == 1 && n >= kWidth && m >= kWidth) {
                transposed(from, c.from_step[3], m, n, to, c.to_step[2]);
                continue;
            }
            for (std::int64_t k = 0; k < n; ++k, from += c.from_step[2], to += c.to_step[2])
                if (c.to_step[3] == 1 && c.from_step[3] == 1 && m >= kWidth)
                    copy_row<Vector>(from, to, m);
                else if (c.to_step[3] == 1 && c.from_step[3] == 1 && m >= 4)
                    copy_row<Four>(from, to, m);
                else
                    for (std::int64_t l = 0; l < m; ++l)
                        to[l * c.to_step[3]] = from[l * c.from_step[3]];
        }
}

// Numbers of another type as floats, rounded to the nearest one.
template <class T>
static void widen(const void* memory, std::int64_t first, float* to, std::int64_t n, int threads) {
    const T* const from = static_cast<const T*>(memory) + first;
    share_numbers(n, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] = float(from[i]);
    });
}

// Any byte but 0 is true.
static void widen_truths(
    const void* memory, std::int64_t first, float* to, std::int64_t n, int threads) {
    const auto* const from = static_cast<const std::uint8_t*>(memory) + first;
    share_numbers(n, threads, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] = from[i] ? 1.0f : 0.0f;
    });
}

using Widen = void (*)(const void*, std::int64_t, float*, std::int64_t, int);
// by the numbers of dtypes in a program
static constexpr Widen kWidening[] = {
    widen<std::uint8_t>, widen_truths,        widen<std::int8_t>, widen<std::int16_t>,
    widen<std::int32_t>, widen<std::int64_t>, widen<double>,
};

static void batch_multiply(const BatchProduct& p) {
    for (std::int64_t i = 0; i < p.batch; ++i)
        for (std::int64_t row = 0; row < p.m; ++row)
            for (std::int64_t column = 0; column < p.n; ++column) {
                const float* a = p.a + i * p.a_batch + row * p.a_row;
                const float* b = p.b + i * p.b_batch + column * p.b_column;
                float sum = 0;
                if (p.a_column == 1 && p.b_row == 1)
                    sum = dot(a, b, p.k);
                else
                    for (std::int64_t k = 0; k < p.k; ++k)
                        sum += a[k * p.a_column] * b[k * p.b_row];
                p.to[(i * p.m + row) * p.n + column] = sum;
            }
}

static void greatest_of_rows(const Rows& r) {
    for (std::int64_t row = 0; row < r.n; ++row) {
        const float* const from = r.from + row * r.width;
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < r.width; ++i)
            if (from[i] > from[best] || (from[i] != from[i] && from[best] == from[best])) best = i;
        r.to[row] = float(best);
    }
}

static void dots(const Product& p) {
    constexpr int together = kWidth / 4;  // rows whose sums are in registers at once
    for (std::int64_t column = 0; column < p.n; ++column) {
        const float* const b = p.b + column * p.b_row;
        const float bias = p.bias ? p.bias[column] : 0.0f;
        std::int64_t row = 0;
        for (; row + kWidth <= p.m; row += kWidth) {
            Vector of[kWidth];
            for (int r = 0; r < kWidth; r += together)
                products_of<together>(p.a + (row + r) * p.a_row, p.a_row, b, p.k, of + r);
            Vector value = sums_of(of);
            if (p.bias) value += bias;
            if (p.relu) value = value < 0 ? Vector{} : value;
            float* const to = p.c + row * p.c_row + column;
            if (p.c_row == 1)
                store(to, value);
            else
                for (int r = 0; r < kWidth; ++r) to[r * p.c_row] = value[r];
        }
        for (; row < p.m; ++row) {
            float value = dot(p.a + row * p.a_row, b, p.k);
            if (p.bias) value += bias;
            p.c[row * p.c_row + column] = p.relu && value < 0 ? 0.0f : value;
        }
    }
}

static bool run(const Operation* operations, std::int64_t n, char* const* memory, int threads) {
    for (const Operation* o = operations; o < operations + n; ++o) {
        switch (o->code) {
            case Code::kProduct: multiply(product_of(*o, memory), threads); break;
            case Code::kDots: dots(product_of(*o, memory)); break;
            case Code::kBatchProduct: batch_multiply(batch_product_of(*o, memory)); break;
            case Code::kConvolve: convolve(convolution_of(*o, memory)); break;
            case Code::kConvolveWeights: convolve_weights(convolution_of(*o, memory)); break;
            case Code::kConvolveInputs: convolve_inputs(convolution_of(*o, memory)); break;
            case Code::kWiden: {
                float* const to = place(*o, 2, memory);
                kWidening[o->word[5]](memory[o->word[0]], o->word[1], to, o->word[4], threads);
                break;
            }
            case Code::kPack: {
                const Copy c = copy_of(*o, memory);
                pack(c.from, c.from_step[2], c.from_step[3], c.shape[2], c.shape[3], c.to, threads);
                break;
            }
            case Code::kCopy: copy(copy_of(*o, memory)); break;
            case Code::kSum: reduce<Code::kSum>(reduction_of(*o, memory)); break;
            case Code::kMean: reduce<Code::kMean>(reduction_of(*o, memory)); break;
            case Code::kLeast: reduce<Code::kLeast>(reduction_of(*o, memory)); break;
            case Code::kGreatest: reduce<Code::kGreatest>(reduction_of(*o, memory)); break;
            case Code::kNorm: {
                const Rows r = rows_of(*o, memory);
                *r.to = __builtin_sqrtf(dot(r.from, r.from, r.width));
                break;
            }
            case Code::kGreatestOfRows: greatest_of_rows(rows_of(*o, memory)); break;
            case Code::kSoftmax: softmax(rows_of(*o, memory)); break;
            case Code::kSoftmaxGradient: softmax_gradient(rows_of(*o, memory)); break;
            case Code::kSelect:
            case Code::kPut:
                if (!chosen(o->code == Code::kPut, choice_of(*o, memory))) return false;
                break;
            default: elementwise(o->code, elementwise_of(*o, memory), threads); break;
        }
    }
    return true;
}

}  // namespace kary::KARY_SET

/* Arrays of numbers in JSON to one flat array of float64: see number_arrays.py, which is complete
 * without.
 *
 * As all of that module, it gives up (None) rather than decide that something is wrong. It reads in
 * one pass and without the interpreter's lock, so that neither the event loop nor other requests wait
 * for a large body.
 *
 * Decimals are rounded correctly: exactly by one operation on doubles where digits and power of ten
 * are small (W. D. Clinger, How to read floating point numbers accurately, 1990), otherwise by a
 * product of 128 bits (D. Lemire, Number parsing at a gigabyte per second, 2021), and by the C
 * library where neither can tell.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__)
#include <xlocale.h>
#endif

#define MAX_RANK 32
#define MAX_DIGITS 19 /* what 64 bits hold for sure */
#define EXACT_POWER 22
#define EXACT_INTEGER (1ULL << 53)
#define FIRST_POWER (-32)
#define LAST_POWER 32
#define MAX_EXPONENT 100000 /* more is as good as this much */
#define UNLOCKED_BYTES (1 << 15) /* below, getting the lock back would take longer than reading */

typedef struct {
    const unsigned char *at;
    const unsigned char *end;
    double *values;
    Py_ssize_t count;
    Py_ssize_t capacity;
    int rank;
    Py_ssize_t shape[MAX_RANK];
    bool whole;
} Reader;

static locale_t plain_locale; /* numbers have a point, whatever the user's language */

static const double EXACT_POWERS[EXACT_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

/* The first 128 bits of each power of five: those of a negative one are rounded up, by which the
 * product is known to be too large by less than one unit of its last place. */
static const struct {
    uint64_t high, low;
} POWERS[LAST_POWER - FIRST_POWER + 1] = {
    {0xcfb11ead453994baULL, 0x67de18eda5814af3ULL},  /* 10^-32 */
    {0x81ceb32c4b43fcf4ULL, 0x80eacf948770ced8ULL},  /* 10^-31 */
    {0xa2425ff75e14fc31ULL, 0xa1258379a94d028eULL},  /* 10^-30 */
    {0xcad2f7f5359a3b3eULL, 0x096ee45813a04331ULL},  /* 10^-29 */
    {0xfd87b5f28300ca0dULL, 0x8bca9d6e188853fdULL},  /* 10^-28 */
    {0x9e74d1b791e07e48ULL, 0x775ea264cf55347eULL},  /* 10^-27 */
    {0xc612062576589ddaULL, 0x95364afe032a819eULL},  /* 10^-26 */
    {0xf79687aed3eec551ULL, 0x3a83ddbd83f52205ULL},  /* 10^-25 */
    {0x9abe14cd44753b52ULL, 0xc4926a9672793543ULL},  /* 10^-24 */
    {0xc16d9a0095928a27ULL, 0x75b7053c0f178294ULL},  /* 10^-23 */
    {0xf1c90080baf72cb1ULL, 0x5324c68b12dd6339ULL},  /* 10^-22 */
    {0x971da05074da7beeULL, 0xd3f6fc16ebca5e04ULL},  /* 10^-21 */
    {0xbce5086492111aeaULL, 0x88f4bb1ca6bcf585ULL},  /* 10^-20 */
    {0xec1e4a7db69561a5ULL, 0x2b31e9e3d06c32e6ULL},  /* 10^-19 */
    {0x9392ee8e921d5d07ULL, 0x3aff322e62439fd0ULL},  /* 10^-18 */
    {0xb877aa3236a4b449ULL, 0x09befeb9fad487c3ULL},  /* 10^-17 */
    {0xe69594bec44de15bULL, 0x4c2ebe687989a9b4ULL},  /* 10^-16 */
    {0x901d7cf73ab0acd9ULL, 0x0f9d37014bf60a11ULL},  /* 10^-15 */
    {0xb424dc35095cd80fULL, 0x538484c19ef38c95ULL},  /* 10^-14 */
    {0xe12e13424bb40e13ULL, 0x2865a5f206b06fbaULL},  /* 10^-13 */
    {0x8cbccc096f5088cbULL, 0xf93f87b7442e45d4ULL},  /* 10^-12 */
    {0xafebff0bcb24aafeULL, 0xf78f69a51539d749ULL},  /* 10^-11 */
    {0xdbe6fecebdedd5beULL, 0xb573440e5a884d1cULL},  /* 10^-10 */
    {0x89705f4136b4a597ULL, 0x31680a88f8953031ULL},  /* 10^-9 */
    {0xabcc77118461cefcULL, 0xfdc20d2b36ba7c3eULL},  /* 10^-8 */
    {0xd6bf94d5e57a42bcULL, 0x3d32907604691b4dULL},  /* 10^-7 */
    {0x8637bd05af6c69b5ULL, 0xa63f9a49c2c1b110ULL},  /* 10^-6 */
    {0xa7c5ac471b478423ULL, 0x0fcf80dc33721d54ULL},  /* 10^-5 */
    {0xd1b71758e219652bULL, 0xd3c36113404ea4a9ULL},  /* 10^-4 */
    {0x83126e978d4fdf3bULL, 0x645a1cac083126eaULL},  /* 10^-3 */
    {0xa3d70a3d70a3d70aULL, 0x3d70a3d70a3d70a4ULL},  /* 10^-2 */
    {0xccccccccccccccccULL, 0xcccccccccccccccdULL},  /* 10^-1 */
    {0x8000000000000000ULL, 0x0000000000000000ULL},  /* 10^0 */
    {0xa000000000000000ULL, 0x0000000000000000ULL},  /* 10^1 */
    {0xc800000000000000ULL, 0x0000000000000000ULL},  /* 10^2 */
    {0xfa00000000000000ULL, 0x0000000000000000ULL},  /* 10^3 */
    {0x9c40000000000000ULL, 0x0000000000000000ULL},  /* 10^4 */
    {0xc350000000000000ULL, 0x0000000000000000ULL},  /* 10^5 */
    {0xf424000000000000ULL, 0x0000000000000000ULL},  /* 10^6 */
    {0x9896800000000000ULL, 0x0000000000000000ULL},  /* 10^7 */
    {0xbebc200000000000ULL, 0x0000000000000000ULL},  /* 10^8 */
    {0xee6b280000000000ULL, 0x0000000000000000ULL},  /* 10^9 */
    {0x9502f90000000000ULL, 0x0000000000000000ULL},  /* 10^10 */
    {0xba43b74000000000ULL, 0x0000000000000000ULL},  /* 10^11 */
    {0xe8d4a51000000000ULL, 0x0000000000000000ULL},  /* 10^12 */
    {0x9184e72a00000000ULL, 0x0000000000000000ULL},  /* 10^13 */
    {0xb5e620f480000000ULL, 0x0000000000000000ULL},  /* 10^14 */
    {0xe35fa931a0000000ULL, 0x0000000000000000ULL},  /* 10^15 */
    {0x8e1bc9bf04000000ULL, 0x0000000000000000ULL},  /* 10^16 */
    {0xb1a2bc2ec5000000ULL, 0x0000000000000000ULL},  /* 10^17 */
    {0xde0b6b3a76400000ULL, 0x0000000000000000ULL},  /* 10^18 */
    {0x8ac7230489e80000ULL, 0x0000000000000000ULL},  /* 10^19 */
    {0xad78ebc5ac620000ULL, 0x0000000000000000ULL},  /* 10^20 */
    {0xd8d726b7177a8000ULL, 0x0000000000000000ULL},  /* 10^21 */
    {0x878678326eac9000ULL, 0x0000000000000000ULL},  /* 10^22 */
    {0xa968163f0a57b400ULL, 0x0000000000000000ULL},  /* 10^23 */
    {0xd3c21bcecceda100ULL, 0x0000000000000000ULL},  /* 10^24 */
    {0x84595161401484a0ULL, 0x0000000000000000ULL},  /* 10^25 */
    {0xa56fa5b99019a5c8ULL, 0x0000000000000000ULL},  /* 10^26 */
    {0xcecb8f27f4200f3aULL, 0x0000000000000000ULL},  /* 10^27 */
    {0x813f3978f8940984ULL, 0x4000000000000000ULL},  /* 10^28 */
    {0xa18f07d736b90be5ULL, 0x5000000000000000ULL},  /* 10^29 */
    {0xc9f2c9cd04674edeULL, 0xa400000000000000ULL},  /* 10^30 */
    {0xfc6f7c4045812296ULL, 0x4d00000000000000ULL},  /* 10^31 */
    {0x9dc5ada82b70b59dULL, 0xf020000000000000ULL},  /* 10^32 */
};

static inline bool is_digit(unsigned char c) { return (unsigned char)(c - '0') < 10; }

static inline bool is_space(unsigned char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static const unsigned char *behind_space(const unsigned char *at, const unsigned char *end) {
    while (at < end && is_space(*at)) at++;
    return at;
}

#if defined(__SIZEOF_INT128__) && defined(__BYTE_ORDER__) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HAS_WIDE 1

static const uint64_t TENS[17] = {
    1ULL,
    10ULL,
    100ULL,
    1000ULL,
    10000ULL,
    100000ULL,
    1000000ULL,
    10000000ULL,
    100000000ULL,
    1000000000ULL,
    10000000000ULL,
    100000000000ULL,
    1000000000000ULL,
    10000000000000ULL,
    100000000000000ULL,
    1000000000000000ULL,
    10000000000000000ULL,
};

/* Eight characters, with 0 to 9 in the bytes of those that are digits. */
static inline uint64_t load_eight(const unsigned char *text) {
    uint64_t word;
    memcpy(&word, text, sizeof word);
    return word ^ 0x3030303030303030ULL;
}

/* How many of eight characters are digits before the first that is none. */
static inline int count_digits(uint64_t word) {
    uint64_t others = ((word + 0x7676767676767676ULL) | word) & 0x8080808080808080ULL;
    return others ? __builtin_ctzll(others) >> 3 : 8;
}

/* The value of the first `count` of eight digits. */
static inline uint64_t value_of(uint64_t word, int count) {
    word = count ? word << (64 - 8 * count) : 0; /* zeros in front */
    word = word * 10 + (word >> 8);
    return (((word & 0x000000FF000000FFULL) * 0x000F424000000064ULL) +
            (((word >> 16) & 0x000000FF000000FFULL) * 0x0000271000000001ULL)) >>
           32;
}

/* Up to 16 digits, without a branch that depends on how many: that cannot be foreseen, and costs more
 * than computing with digits that are not there. At least 16 characters follow. */
static inline const unsigned char *read_digits(const unsigned char *at, uint64_t *digits) {
    uint64_t head = load_eight(at), tail = load_eight(at + 8);
    int first = count_digits(head);
    int second = count_digits(tail) & -(first == 8);
    *digits = *digits * TENS[first + second] + value_of(head, first) * TENS[second] +
              value_of(tail, second);
    return at + first + second;
}

/* digits * 10^power, correctly rounded; false where that would take more bits. Digits are not 0. */
static bool by_product(uint64_t digits, int power, double *value) {
    if (power < FIRST_POWER || power > LAST_POWER) return false;
    int zeros = __builtin_clzll(digits);
    digits <<= zeros;
    uint64_t high = POWERS[power - FIRST_POWER].high;
    unsigned __int128 product = (unsigned __int128)digits * high;
    uint64_t upper = (uint64_t)(product >> 64), lower = (uint64_t)product;
    if ((upper & 0x1FF) == 0x1FF) {
        /* The bits that were left out could carry into those that count. */
        uint64_t low = POWERS[power - FIRST_POWER].low;
        uint64_t more = (uint64_t)(((unsigned __int128)digits * low) >> 64);
        lower += more;
        if (lower < more) upper++;
        if (lower == UINT64_MAX) return false;
    }
    int upper_bit = (int)(upper >> 63);
    int shift = upper_bit + 64 - 52 - 3;
    uint64_t mantissa = upper >> shift; /* 53 bits and one to round by */
    if (lower <= 1 && (mantissa & 3) == 1 && (mantissa << shift) == upper) {
        return false; /* perhaps exactly between two doubles */
    }
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    /* The floor of log2(10^power); exact in this range. */
    int exponent = ((217706 * power) >> 16) + upper_bit - zeros + 63;
    if (mantissa >= (2ULL << 52)) {
        mantissa = 1ULL << 52;
        exponent++;
    }
    uint64_t bits = (mantissa & ~(1ULL << 52)) | ((uint64_t)(exponent + 1023) << 52);
    memcpy(value, &bits, sizeof bits);
    return true;
}
#else
#define HAS_WIDE 0
#endif

/* digits * 10^power, for which the text between `start` and `at` stands; false if it is infinite. */
static bool round_decimal(const unsigned char *start, uint64_t digits, int power, bool digits_hold,
                          double *value) {
    if (digits_hold && digits == 0) {
        *value = 0.0;
        return true;
    }
#if HAS_WIDE
    if (digits_hold && by_product(digits, power, value)) return true;
#else
    (void)power;
#endif
    /* It ends where the number does: a byte that is none follows, or the text's last, 0. */
    *value = strtod_l((const char *)start, NULL, plain_locale);
    return isfinite(*value);
}

/* NaN, Infinity or Inf at `*place`, as in rapidjson, behind its sign; false if it is none. */
static bool read_word(const unsigned char **place, const unsigned char *end, bool negative,
                      double *value, bool *whole) {
    static const struct {
        const char *text;
        size_t length;
    } WORDS[] = {{"NaN", 3}, {"Infinity", 8}, {"Inf", 3}};
    for (int i = 0; i < 3; i++) {
        if ((size_t)(end - *place) < WORDS[i].length ||
            memcmp(*place, WORDS[i].text, WORDS[i].length) != 0)
            continue;
        *place += WORDS[i].length;
        *value = i == 0 ? NAN : negative ? -INFINITY : INFINITY;
        *whole = false;
        return true;
    }
    return false;
}

/* One number at `*place`, which is moved behind it; false if there is none, or one that only others
 * can tell the value of. */
static inline bool read_number(const unsigned char **place, const unsigned char *end, double *value,
                               bool *whole) {
    const unsigned char *at = *place;
    bool negative = *at == '-';
    at += negative;
    const unsigned char *first = at;
    if (at >= end) return false;
    if (!is_digit(*at)) {
        if (!read_word(&at, end, negative, value, whole)) return false;
        *place = at;
        return true;
    }
    uint64_t digits = 0;
    do {
        digits = digits * 10 + (*at++ - '0');
    } while (at < end && is_digit(*at));
    Py_ssize_t length = at - first;
    if (length > 1 && *first == '0') return false;
    int power = 0;
    bool integer = true;
    if (at < end && *at == '.') {
        integer = false;
        const unsigned char *fraction = ++at;
#if HAS_WIDE
        if (end - at >= 16) at = read_digits(at, &digits);
#endif
        while (at < end && is_digit(*at)) digits = digits * 10 + (*at++ - '0');
        Py_ssize_t count = at - fraction;
        if (count == 0 || count > MAX_EXPONENT) return false;
        power = -(int)count;
        length += count;
    }
    if (at < end && (*at | 0x20) == 'e') {
        integer = false;
        at++;
        bool minus = at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (at >= end || !is_digit(*at)) return false;
        int exponent = 0;
        do {
            if (exponent < MAX_EXPONENT) exponent = exponent * 10 + (*at - '0');
            at++;
        } while (at < end && is_digit(*at));
        power += minus ? -exponent : exponent;
    }
    if (length > MAX_DIGITS) {
        /* Zeros in front do not count. */
        for (const unsigned char *zero = first; zero < at && (*zero == '0' || *zero == '.'); zero++)
            length -= *zero == '0';
    }
    if (integer) {
        /* Beyond 64 bits, or nearly; and an integer has no -0. */
        if (length > MAX_DIGITS || (negative && digits > (uint64_t)INT64_MAX + 1)) return false;
        *value = (double)digits;
        if (negative && digits != 0) *value = -*value;
    } else {
        if (length <= MAX_DIGITS && digits <= EXACT_INTEGER && power >= -EXACT_POWER &&
            power <= EXACT_POWER) {
            *value = (double)digits;
            if (power < 0)
                *value /= EXACT_POWERS[-power];
            else
                *value *= EXACT_POWERS[power];
        } else if (!round_decimal(first, digits, power, length <= MAX_DIGITS, value)) {
            return false;
        }
        if (negative) *value = -*value;
        *whole = false;
    }
    *place = at;
    return true;
}

/* A list of numbers alone, from its first one to behind the closing bracket; how many it has, or 0
 * if it is none. */
static Py_ssize_t read_numbers(Reader *r) {
    const unsigned char *at = r->at, *end = r->end;
    double *value = r->values + r->count, *limit = r->values + r->capacity;
    bool whole = r->whole;
    for (;;) {
        if (at < end && is_space(*at)) at = behind_space(at, end);
        if (at >= end || value >= limit || !read_number(&at, end, value, &whole)) return 0;
        value++;
        if (at < end && is_space(*at)) at = behind_space(at, end);
        if (at >= end) return 0;
        unsigned char c = *at++;
        if (c == ']') break;
        if (c != ',') return 0;
    }
    Py_ssize_t length = value - (r->values + r->count);
    r->at = at;
    r->count += length;
    r->whole = whole;
    return length;
}

/* A list and all in it, from behind its bracket to behind the closing one. */
static bool read_list(Reader *r, int depth) {
    if (depth >= MAX_RANK) return false;
    Py_ssize_t length = 0;
    r->at = behind_space(r->at, r->end);
    if (r->at < r->end && *r->at != '[') {
        if (r->rank == 0) r->rank = depth + 1;
        if (depth + 1 != r->rank) return false;
        length = read_numbers(r);
    } else {
        if (r->rank != 0 && depth + 1 >= r->rank) return false;
        for (unsigned char c = ','; c == ','; c = *r->at++) {
            r->at = behind_space(r->at, r->end);
            if (r->at >= r->end || *r->at++ != '[') return false;
            if (!read_list(r, depth + 1)) return false;
            length++;
            r->at = behind_space(r->at, r->end);
            if (r->at >= r->end) return false;
        }
        if (r->at[-1] != ']') return false;
    }
    if (r->shape[depth] == 0) r->shape[depth] = length;
    return length != 0 && r->shape[depth] == length;
}

static PyObject *result_of(const Reader *r, PyObject *content) {
    PyObject *shape = PyTuple_New(r->rank);
    if (shape == NULL) return NULL;
    for (int depth = 0; depth < r->rank; depth++) {
        PyObject *length = PyLong_FromSsize_t(r->shape[depth]);
        if (length == NULL || PyTuple_SetItem(shape, depth, length) < 0) {
            Py_DECREF(shape);
            return NULL;
        }
    }
    PyObject *result = Py_BuildValue("(OOO)", content, shape, r->whole ? Py_True : Py_False);
    Py_DECREF(shape);
    return result;
}

PyDoc_STRVAR(read_doc,
             "read(text, start, end, /)\n--\n\n"
             "Return the numbers in text[start:end], a JSON array, or None if it is not a regular\n"
             "one of numbers alone, at least one, none beyond 64 bits.\n\n"
             "Returns float64 values as bytes, the array's shape, and whether all were written as\n"
             "integers.");

static PyObject *read_array(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *text;
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "Snn:read", &text, &start, &end)) return NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AsString(text);
    if (bytes == NULL) return NULL;
    if (start < 0 || end > PyBytes_Size(text) || start > end) {
        PyErr_SetString(PyExc_ValueError, "expected a part of the text");
        return NULL;
    }
    Py_ssize_t capacity = 1;
    for (Py_ssize_t i = start; i < end; i++) capacity += bytes[i] == ',';
    if (capacity > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(double)) return PyErr_NoMemory();
    PyObject *content = PyBytes_FromStringAndSize(NULL, capacity * (Py_ssize_t)sizeof(double));
    if (content == NULL) return NULL;
    Reader reader = {.at = bytes + start, .end = bytes + end, .capacity = capacity, .whole = true};
    reader.values = (double *)(void *)PyBytes_AsString(content);
    bool good = false;
    PyThreadState *thread = end - start < UNLOCKED_BYTES ? NULL : PyEval_SaveThread();
    if (reader.at < reader.end && *reader.at == '[') {
        reader.at++;
        good = read_list(&reader, 0);
        good = good && behind_space(reader.at, reader.end) == reader.end && reader.count == capacity;
    }
    if (thread != NULL) PyEval_RestoreThread(thread);
    PyObject *result = good ? result_of(&reader, content) : Py_NewRef(Py_None);
    Py_DECREF(content);
    return result;
}

static PyMethodDef methods[] = {
    {"read", read_array, METH_VARARGS, read_doc},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    (void)module;
    if (plain_locale == (locale_t)0) plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain_locale == (locale_t)0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_numbers",
    .m_doc = "Arrays of numbers in JSON to one flat array of float64.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__numbers(void) { return PyModuleDef_Init(&definition); }

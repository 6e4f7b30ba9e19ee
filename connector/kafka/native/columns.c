/* Copies librdkafka's messages into Arrow columns, so that Python need not handle each message.
 *
 * To compile this file, you need neither Python nor librdkafka: the caller passes librdkafka's functions, and owns all memory.
 * The messages' layout is that of rd_kafka_message_t, which is fixed within a major version.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    int err;
    void *topic;
    int32_t partition;
    const void *payload;
    size_t len;
    const void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message_t;

typedef int64_t (*timestamp_fn)(const message_t *, int *kind);
typedef int (*headers_fn)(const message_t *, void **headers);
typedef int (*header_fn)(const void *headers, size_t at, const char **name, const void **value, size_t *size);
typedef void (*destroy_fn)(message_t *);

/* Sets a bit of a bitmap that is initially all zeros. */
static void set_bit(uint8_t *bitmap, int64_t at) { bitmap[at >> 3] |= (uint8_t)(1u << (at & 7)); }

/* Stores the error and the offset of each message; returns the number of messages before the first error. */
EXPORT int64_t columns_scan(message_t *const *messages, int64_t count, int32_t *errors, int64_t *offsets) {
    int64_t good = -1;
    for (int64_t i = 0; i < count; i++) {
        errors[i] = messages[i]->err;
        offsets[i] = messages[i]->offset;
        if (messages[i]->err && good < 0) good = i;
    }
    return good < 0 ? count : good;
}

/* Counts the bytes of all keys, and the bytes of all values. */
EXPORT void columns_sizes(message_t *const *messages, int64_t count, int64_t *keys, int64_t *values) {
    int64_t k = 0, v = 0;
    for (int64_t i = 0; i < count; i++) {
        if (messages[i]->key) k += (int64_t)messages[i]->key_len;
        if (messages[i]->payload) v += (int64_t)messages[i]->len;
    }
    *keys = k;
    *values = v;
}

/* Copies keys (which = 0) or values (which = 1) into a binary column; returns the number of nulls.
 * ends has room for count + 1 numbers; valid is initially all zeros. */
EXPORT int64_t columns_bytes(message_t *const *messages, int64_t count, int which, int32_t *ends, uint8_t *data,
                             uint8_t *valid) {
    int64_t at = 0, nulls = 0;
    ends[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const message_t *m = messages[i];
        const void *bytes = which ? m->payload : m->key;
        if (bytes) {
            size_t size = which ? m->len : m->key_len;
            memcpy(data + at, bytes, size);
            at += (int64_t)size;
            set_bit(valid, i);
        } else {
            nulls++;
        }
        ends[i + 1] = (int32_t)at;
    }
    return nulls;
}

/* Stores the timestamps in milliseconds, and their kinds (0 none, 1 create, 2 append). */
EXPORT void columns_times(message_t *const *messages, int64_t count, timestamp_fn timestamp, int64_t *millis,
                          int32_t *kinds) {
    for (int64_t i = 0; i < count; i++) {
        int kind = 0;
        millis[i] = timestamp(messages[i], &kind);
        kinds[i] = kind;
    }
}

/* Stores the number of each message's headers (-1 if it has none), and the total bytes of all names and of all values.
 * Returns the total number of headers. */
EXPORT int64_t columns_header_sizes(message_t *const *messages, int64_t count, headers_fn headers, header_fn header,
                                    int32_t *counts, int64_t *names, int64_t *values) {
    int64_t all = 0, n = 0, v = 0;
    for (int64_t i = 0; i < count; i++) {
        void *list = NULL;
        const char *name;
        const void *value;
        size_t size;
        int32_t own = 0;
        if (headers(messages[i], &list)) {
            counts[i] = -1;
            continue;
        }
        while (!header(list, (size_t)own, &name, &value, &size)) {
            n += (int64_t)strlen(name);
            if (value) v += (int64_t)size;
            own++;
        }
        counts[i] = own;
        all += own;
    }
    *names = n;
    *values = v;
    return all;
}

/* Copies all headers, message by message, into a column of names and a column of values; returns the number of null values. */
EXPORT int64_t columns_headers(message_t *const *messages, int64_t count, headers_fn headers, header_fn header,
                               int32_t *name_ends, uint8_t *names, int32_t *value_ends, uint8_t *values,
                               uint8_t *valid) {
    int64_t at = 0, n = 0, v = 0, nulls = 0;
    name_ends[0] = value_ends[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        void *list = NULL;
        const char *name;
        const void *value;
        size_t size;
        if (headers(messages[i], &list)) continue;
        for (size_t own = 0; !header(list, own, &name, &value, &size); own++) {
            size_t length = strlen(name);
            memcpy(names + n, name, length);
            n += (int64_t)length;
            if (value) {
                memcpy(values + v, value, size);
                v += (int64_t)size;
                set_bit(valid, at);
            } else {
                nulls++;
            }
            at++;
            name_ends[at] = (int32_t)n;
            value_ends[at] = (int32_t)v;
        }
    }
    return nulls;
}

EXPORT void columns_destroy(message_t **messages, int64_t count, destroy_fn destroy) {
    for (int64_t i = 0; i < count; i++) destroy(messages[i]);
}

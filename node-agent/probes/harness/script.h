/* Script of the invented libraries in tests: the variable SHIM with words `name=value`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The value of a name, or NULL. */
static inline const char *scripted(const char *name) {
    static char words[1024], value[256];
    const char *script = getenv("SHIM");
    snprintf(words, sizeof words, "%s", script ? script : "");
    size_t length = strlen(name);
    for (char *at = strtok(words, " "); at; at = strtok(NULL, " "))
        if (!strncmp(at, name, length) && at[length] == '=') {
            snprintf(value, sizeof value, "%s", at + length + 1);
            return value;
        }
    return NULL;
}

/* The value of a name as a number, 0 without one. */
static inline int number(const char *name) {
    const char *value = scripted(name);
    return value ? atoi(value) : 0;
}

/* The error of a call, 0 without one. Does not return if the script says `hang`. */
static inline int failure(const char *call) {
    const char *value = scripted(call);
    if (value && !strcmp(value, "hang"))
        for (;;)
            pause();
    return number(call);
}

/* The CUDA driver's interface on the processor, as gpu_test.py calls it: what it launches is computed in C. What is wrong
 * with the GPU that CUDA_VISIBLE_DEVICES names is in the file that FAKE_CUDA names, a line "UUID FAULT" each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *module = "module", *vector_add = "vector_add", *matrix_product = "matrix_product";
static uint64_t freed;

static int is_faulty(const char *fault)
{
    char line[200], wanted[200];
    const char *uuid = getenv("CUDA_VISIBLE_DEVICES"), *name = getenv("FAKE_CUDA");
    FILE *file = name ? fopen(name, "r") : NULL;
    int found = 0;
    if (!file) return 0;
    snprintf(wanted, sizeof wanted, "%s %s\n", uuid ? uuid : "", fault);
    while (fgets(line, sizeof line, file)) found |= !strcmp(line, wanted);
    fclose(file);
    return found;
}

int cuInit(unsigned flags)
{
    puts("drivers may say what they like");
    if (is_faulty("dies")) abort();
    while (is_faulty("hangs")) pause();
    return flags ? 1 : is_faulty("lost") ? 999 : 0;
}
int cuGetErrorName(int error, const char **name) { *name = error == 999 ? "CUDA_ERROR_UNKNOWN" : NULL; return !*name; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &freed; return device == 7 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { return context == &freed ? 0 : 201; }
int cuModuleLoadData(void **found, const char *image) { *found = (void *)module; return strncmp(image, ".version ", 9) ? 218 : 0; }
int cuModuleGetFunction(void **function, void *of, const char *name)
{
    *function = (void *)(!strcmp(name, vector_add) ? vector_add : !strcmp(name, matrix_product) ? matrix_product : NULL);
    return of == module && *function ? 0 : 500;
}
int cuMemAlloc_v2(uint64_t *pointer, size_t size) { *pointer = (uint64_t)malloc(size); return 0; }
int cuMemFree_v2(uint64_t pointer) { free((void *)pointer); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuCtxSynchronize(void) { return is_faulty("uncorrectable") ? 214 : 0; }
int cuLaunchKernel(const char *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **words, void **extra)
{
    const float *a = *(float **)words[0], *b = *(float **)words[1];
    float *c = *(float **)words[2];
    unsigned n = *(unsigned *)words[3], i, j, k;
    if (gz != 1 || bz != 1 || shared || stream || extra) return 1;
    if (kernel == vector_add) {
        if (gx * bx != n || gy * by != 1) return 1;
        for (i = 0; i < n; i++) c[i] = a[i] + b[i];
    } else {
        if (gx * bx != n || gy * by != n) return 1;
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) {
                float sum = 0;
                for (k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
                c[i * n + j] = sum;
            }
        if (is_faulty("wrong")) c[n + 3] += 1;
    }
    return 0;
}

// What a launch needs of libcuda, for tests: it notes what it is given.

#include <cstring>

extern "C" {
#define EXPORT __attribute__((visibility("default")))

struct Noted {
    unsigned sizes[7];
    void* stream;
    void* pointers[3];
    int numbers[3];
    int shared_asked;
    char name[32];
};
EXPORT Noted noted;
EXPORT int fails;  // the code that all functions return, if not 0

EXPORT int cuModuleLoadData(void** module, const char* image) {
    *module = const_cast<char*>(image);
    return std::strncmp(image, "cubin", 5) ? 200 : fails;
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = module;
    std::strncpy(noted.name, name, sizeof noted.name - 1);
    return fails;
}
EXPORT int cuFuncSetAttribute(void*, int attribute, int value) {
    if (attribute == 8) noted.shared_asked = value;
    return fails;
}
EXPORT int cuLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void* stream,
                          void** parameters, void** extra) {
    const unsigned sizes[7] = {gx, gy, gz, bx, by, bz, shared};
    std::memcpy(noted.sizes, sizes, sizeof sizes);
    noted.stream = stream;
    for (int i = 0; i < 3; ++i) {
        noted.pointers[i] = *static_cast<void**>(parameters[i]);
        noted.numbers[i] = *static_cast<int*>(parameters[3 + i]);
    }
    return extra ? 1 : fails;
}
EXPORT int cuGetErrorName(int code, const char** name) {
    if (code != 200) return 1;
    *name = "CUDA_ERROR_INVALID_IMAGE";
    return 0;
}
}

/* The header is C, the shared library links into a C program, and structs of other sizes are safe. */
#include <backstay.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
      return 1;                                                    \
    }                                                              \
  } while (0)

int main(void) {
  backstay_error error = {sizeof error, 0, ""};
  uint64_t shape[2] = {3, 4};
  uint64_t blobs[1] = {5};
  uint64_t size_bytes = 0;
  backstay_tensor tensor;
  backstay_client* client = NULL;
  backstay_connect_options options = {sizeof options, "/nonexistent/socket", 10};
  CHECK(backstay_abi_version() == BACKSTAY_ABI_VERSION);
  CHECK(strcmp(backstay_code_name(BACKSTAY_NO_SPACE), "no space") == 0);
  CHECK(strcmp(backstay_dtype_name(BACKSTAY_FP8_E4M3), "fp8_e4m3") == 0);

  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.name = "weight";
  tensor.dtype = BACKSTAY_BF16;
  tensor.dimension_count = 2;
  tensor.shape = shape;
  CHECK(backstay_plan(&tensor, 1, blobs, 1, &size_bytes, &error) == BACKSTAY_OK);
  CHECK(size_bytes == 128);

  /* An older caller's struct ends early: the fields after it are 0. */
  tensor.struct_size = offsetof(backstay_tensor, global_shape);
  CHECK(backstay_plan(&tensor, 1, NULL, 0, &size_bytes, &error) == BACKSTAY_OK);
  CHECK(size_bytes == 64);

  tensor.struct_size = 0;
  CHECK(backstay_plan(&tensor, 1, NULL, 0, &size_bytes, &error) == BACKSTAY_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "struct_size") != NULL);
  CHECK(backstay_plan(&tensor, 1, NULL, 0, NULL, NULL) == BACKSTAY_INVALID_ARGUMENT);

  CHECK(backstay_connect(&options, &client, &error) == BACKSTAY_NOT_FOUND);
  CHECK(client == NULL);
  CHECK(strstr(error.message, "/nonexistent/socket") != NULL);
  CHECK(backstay_resize(NULL, 1, 1, &error) == BACKSTAY_INVALID_ARGUMENT);
  backstay_close(NULL);
  backstay_save_destroy(NULL);
  return 0;
}

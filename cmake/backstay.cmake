# What every folder's CMakeLists.txt uses.

# Ours, as strictly warned as both compilers allow. Generated code and headers of libraries are not.
add_library(backstay_options INTERFACE)
target_include_directories(backstay_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(backstay_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wconversion
  -Wno-sign-conversion)

# backstay_library(NAME SOURCES a.cc ... LINK target ...): a static library `backstay_NAME`.
function(backstay_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(backstay_${name} STATIC ${arg_SOURCES})
  target_link_libraries(backstay_${name} PUBLIC backstay_options ${arg_LINK})
endfunction()

# backstay_proto(NAME PROTOS a.proto ... [GRPC] [LINK target ...]): a static library `backstay_NAME` of generated code,
# included as "folder/a.pb.h".
function(backstay_proto name)
  cmake_parse_arguments(arg "GRPC" "" "PROTOS;LINK" ${ARGN})
  set(out ${CMAKE_BINARY_DIR}/generated)
  set(generated)
  foreach(proto ${arg_PROTOS})
    file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
    string(REGEX REPLACE "\\.proto$" "" stem ${relative})
    set(outputs ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    set(plugin)
    if(arg_GRPC)
      list(APPEND outputs ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
      set(plugin --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    add_custom_command(OUTPUT ${outputs}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
      COMMAND protobuf::protoc -I ${CMAKE_SOURCE_DIR} --cpp_out=${out} ${plugin} ${CMAKE_SOURCE_DIR}/${relative}
      DEPENDS ${CMAKE_SOURCE_DIR}/${relative} VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  add_library(backstay_${name} STATIC ${generated})
  target_include_directories(backstay_${name} SYSTEM PUBLIC ${out} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(backstay_${name} PUBLIC protobuf::libprotobuf ${arg_LINK})
  if(arg_GRPC)
    target_link_libraries(backstay_${name} PUBLIC gRPC::grpc++)
  endif()
endfunction()

# For programs whose threads meet inside of gRPC; nothing in other builds.
add_library(backstay_grpc_tsan INTERFACE)
if(BACKSTAY_SANITIZE MATCHES thread)
  target_sources(backstay_grpc_tsan INTERFACE ${CMAKE_SOURCE_DIR}/cmake/grpc_tsan.cc)
endif()

# backstay_test(NAME [LABEL unit|contract|sim|process] [TIMEOUT seconds] SOURCES a_test.cc ... LINK target ...)
function(backstay_test name)
  cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "SOURCES;LINK" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE backstay_options ${arg_LINK} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
endfunction()

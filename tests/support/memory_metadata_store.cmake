add_library(backstay_memory_metadata STATIC memory_metadata_store.cc)
target_link_libraries(backstay_memory_metadata PUBLIC backstay_options backstay_metadata)

# For tests whose threads meet inside of gRPC; nothing in other builds.
add_library(backstay_grpc_tsan INTERFACE)
if(BACKSTAY_SANITIZE MATCHES thread)
  target_sources(backstay_grpc_tsan INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/grpc_tsan.cc)
endif()

foreach(name job_store leader_election membership metadata_embedded metadata_engine metadata_keys)
  backstay_test(${name}_test SOURCES ${name}_test.cc LINK backstay_memory_metadata backstay_test_support)
endforeach()
backstay_test(metadata_grpc_test SOURCES metadata_grpc_test.cc
  LINK backstay_grpc_tsan backstay_metadata_grpc backstay_test_support)
backstay_test(peer_grpc_test SOURCES peer_grpc_test.cc
  LINK backstay_grpc_tsan backstay_peer_grpc backstay_test_support)

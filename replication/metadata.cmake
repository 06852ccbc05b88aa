# The metadata store: its rules, and SQLite as the journal of the embedded one; membership, leaders
# and the jobs' records on top of it.
find_package(SQLite3 REQUIRED)

backstay_proto(metadata_proto PROTOS metadata_records.proto)

backstay_library(metadata
  SOURCES job_store.cc leader_election.cc membership.cc metadata_embedded.cc metadata_engine.cc
    metadata_keys.cc metadata_sqlite.cc metadata_sqlite_file.cc metadata_watch.cc
    node_record.cc
  LINK backstay_base backstay_metadata_proto SQLite::SQLite3)

# Serving it to other services, and reaching it there.
backstay_proto(metadata_service_proto GRPC PROTOS metadata.proto)

backstay_library(metadata_grpc
  SOURCES metadata_grpc_client.cc metadata_grpc_service.cc metadata_wire.cc
  LINK backstay_metadata backstay_metadata_service_proto)

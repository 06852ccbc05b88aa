# The job leader's side of replication; included by CMakeLists.txt.
backstay_library(job_leader
  SOURCES placement.cc job_record.cc commit_tracker.cc repair_planner.cc timeline.cc
  LINK backstay_base backstay_metadata backstay_peer_proto)

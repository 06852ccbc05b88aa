# The job leader's side of replication; included by CMakeLists.txt.
backstay_library(job_leader
  SOURCES admission.cc announcer.cc commit_tracker.cc job_leader.cc job_leader_replicas.cc
    job_members.cc job_record.cc leader_calls.cc leader_status.cc placement.cc record_writer.cc
    repair_planner.cc repairer.cc timeline.cc
  LINK backstay_replication backstay_metadata backstay_peer_proto backstay_base)

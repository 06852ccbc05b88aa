backstay_test(job_leader_parts_test
  SOURCES placement_test.cc job_record_test.cc commit_tracker_test.cc repair_planner_test.cc
  LINK backstay_job_leader backstay_test_support)

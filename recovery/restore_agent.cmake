backstay_library(restore_agent
  SOURCES restore_agent.cc
  LINK backstay_replication)

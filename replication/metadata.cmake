# The metadata store: its rules, and SQLite as the journal of the embedded one.
find_package(SQLite3 REQUIRED)

backstay_library(metadata
  SOURCES metadata_embedded.cc metadata_engine.cc metadata_sqlite.cc metadata_sqlite_file.cc
  LINK backstay_base SQLite::SQLite3)

"""The exceptions to tidy.py's rules: (rule, path pattern, reason). The only place for them.

A pattern is a shell pattern on the path from the repository's root. An entry that excuses nothing is a finding too.
"""

ALLOWED = [
    ("ifdef", "tests/unit/base/hash_test.cc", "a test whose subject is a data race is left out under the thread sanitizer"),
    ("ifdef", "client/include/backstay.h", "read by C and C++ compilers alike: extern \"C\", visibility, include guard"),
    ("pragma", "client/include/backstay.h", "the C ABI keeps to standard C, so it has an include guard"),
    ("file-size", "client/include/backstay_handles.hpp", "header-only: what a caller includes is interface and body"),
    ("function-size", "tests/unit/client/fake_service.cc", "one case for each message; splitting it would hide none"),
    ("function-size", "tests/unit/client/wire_test.cc", "one message with every field set"),
    ("file-size", "client/include/backstay.h", "the C ABI is one header, and most of it is its documentation"),
]

"""What is fuzzed: readers in the fuzzer's own process, and owners over sockets."""

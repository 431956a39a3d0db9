#pragma once

// Marks a function whose loops run on whatever vector units the machine has. Sanitizers cannot
// start programs that choose functions at load time.
#if defined(__x86_64__) && defined(__ELF__) && !defined(__SANITIZE_ADDRESS__)
#define SHARDPLAN_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHARDPLAN_VECTOR_CLONES
#endif

# eitri_tests (all tests, one binary), eitri_bench, and the fuzz targets.
find_package(GTest REQUIRED)

# Tests are tests/**/*_test.cpp; the other files there are what tests need, tests/main.cpp included. Files that test an ISA's
# device code are named as kernel files are. tests/fuzz is apart.
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS tests/*.cpp)
list(FILTER test_sources EXCLUDE REGEX "/tests/(fuzz|frameworks)/|/tests/process/driver\\.cpp$")
# A test named after an ISA (gemm_amx_test.cpp) only calls its kernels; the flags are for the files that hold its instructions.
set(isa_sources ${test_sources})
list(FILTER isa_sources EXCLUDE REGEX "_test\\.cpp$")
eitri_apply_isa(isa_sources)
if(NOT EITRI_X86)
  list(FILTER test_sources EXCLUDE REGEX "/x86_[^/]*$")
endif()
# The thread sanitizer runs the tests that are named after threads: only their files, and the harness, are built for it.
if(EITRI_SANITIZE STREQUAL "thread")
  set(all_sources ${test_sources})
  set(test_sources "")
  foreach(file IN LISTS all_sources)
    if(file MATCHES "/tests/harness/" AND NOT file MATCHES "_test\\.cpp$")
      list(APPEND test_sources ${file})
      continue()
    endif()
    file(STRINGS ${file} threads REGEX "^TEST.*(Thread|Concurren)" LIMIT_COUNT 1)
    if(threads)
      list(APPEND test_sources ${file})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    endif()
  endforeach()
endif()
if(test_sources)
  add_executable(eitri_tests ${test_sources} ${harness_sources} ${level_sources})
  target_include_directories(eitri_tests PRIVATE tests)
  target_link_libraries(eitri_tests PRIVATE eitri_tools GTest::gtest GTest::gmock)
  target_compile_options(eitri_tests PRIVATE -Wno-dangling-else)  # an EXPECT_ in an if without braces is meant so
  # Only where it is used: a compiler cache serves the others from any checkout.
  set_source_files_properties(tests/jit/embedded_test.cpp tests/checkpoint/checkpoint_test.cpp PROPERTIES
    COMPILE_DEFINITIONS EITRI_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
  # Hundreds of forms of each emulated kernel: with every check inlined they take a third of the sanitizers' build. Null pointers
  # and bounds are the address sanitizer's there, by calls. Frames that outlive their function for its sake take a third of the time of
  # fibers; a kernel returns no address.
  if(EITRI_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(GLOB emulated_kernels CONFIGURE_DEPENDS tests/simt/*_kernels_warp*.cpp)
    set_source_files_properties(${emulated_kernels} PROPERTIES COMPILE_OPTIONS
      "-fno-sanitize=null,object-size,vptr,pointer-overflow;--param=asan-instrumentation-with-call-threshold=0;--param=asan-use-after-return=0")
  endif()
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tests/main.cpp)
    target_sources(eitri_tests PRIVATE tests/main.cpp)
  else()
    target_link_libraries(eitri_tests PRIVATE GTest::gtest_main)
  endif()
  # What the tests of tests/process start, kill and race; they look for it beside themselves.
  add_executable(eitri_process_driver tests/process/driver.cpp tests/tune/sabotage_op.cpp)
  target_include_directories(eitri_process_driver PRIVATE tests)
  target_link_libraries(eitri_process_driver PRIVATE eitri_core eitri_flags)
  add_dependencies(eitri_tests eitri_process_driver)
  enable_testing()
  add_test(NAME eitri_tests COMMAND eitri_tests)
  # ctest -L gpu: on a machine with a GPU; skipped elsewhere.
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_FOUND AND TARGET eitri_cli)
    set(gpu_tier ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tests/gpu_tier.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
    add_test(NAME gpu COMMAND ${gpu_tier})
    add_test(NAME gpu_memcheck COMMAND ${gpu_tier} --tool memcheck)
    add_test(NAME gpu_racecheck COMMAND ${gpu_tier} --tool racecheck)
    set_tests_properties(gpu gpu_memcheck gpu_racecheck PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)
  endif()
endif()

file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.cpp)
if(bench_sources)
  find_package(benchmark REQUIRED)
  add_executable(eitri_bench ${bench_sources})
  target_link_libraries(eitri_bench PRIVATE eitri_tools benchmark::benchmark)
endif()

# tests/fuzz/NAME_fuzz.cpp defines LLVMFuzzerTestOneInput. Every build makes NAME_fuzz_replay, which runs the files of a
# corpus folder and some thousand fixed mutations of them; a clang build with EITRI_FUZZ also makes NAME_fuzz, the real fuzzer.
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cpp)
add_custom_target(eitri_fuzz)
foreach(file IN LISTS fuzz_sources)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name}_replay ${file} tests/fuzz/replay_main.cpp)
  target_link_libraries(${name}_replay PRIVATE eitri_tools)
  add_dependencies(eitri_fuzz ${name}_replay)
  if(EITRI_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      message(FATAL_ERROR "EITRI_FUZZ=ON needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
    endif()
    add_executable(${name} ${file})
    target_link_libraries(${name} PRIVATE eitri_tools)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(eitri_fuzz ${name})
  endif()
endforeach()
if(EITRI_FUZZ)
  target_compile_options(eitri_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Collects the sources of the chain and gives each x86 file the flags of its ISA, by its name:
#
#   x86_avx2*.cpp    *_avx2*.cpp      AVX2, FMA, F16C
#   x86_avx512*.cpp  *_avx512*.cpp    AVX-512 F BW DQ VL VNNI; with "avx512bf16" in the name also BF16, with "avx512vbmi" also VBMI
#   x86_amx*.cpp     *_amx*.cpp       all of that and AMX tile, int8, bf16
#
# x86_amx*.cpp is compiled a second time with EITRI_AMX_EMULATED=1 and without the AMX flags: the tile instructions are
# then plain C++, in a namespace of their own, so that AMX kernels are tested on machines without AMX.
#
# Sets eitri_sources and EITRI_X86 (1 when the x86 files are in).
include(CheckCXXCompilerFlag)

set(isa_avx2 -mavx2 -mfma -mf16c)
set(isa_avx512 ${isa_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512)
if(EITRI_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc (bug 110027) takes frames for 64-byte aligned that the search for uses after return has put elsewhere.
  list(APPEND isa_avx512 --param=asan-use-after-return=0)
endif()
set(isa_avx512bf16 ${isa_avx512} -mavx512bf16)
set(isa_avx512vbmi ${isa_avx512} -mavx512vbmi)
set(isa_amx_emulated ${isa_avx512bf16} -mavx512vbmi)
set(isa_amx ${isa_amx_emulated} -mamx-tile -mamx-int8 -mamx-bf16)

set(EITRI_X86 0)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  string(REPLACE ";" " " isa_probe "${isa_amx}")
  check_cxx_compiler_flag("${isa_probe}" EITRI_COMPILER_HAS_X86_ISA)
  if(EITRI_COMPILER_HAS_X86_ISA)
    set(EITRI_X86 1)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17)
  # That pass of clang 16 dies of broadcasts that are read as bf16.
  foreach(isa amx amx_emulated)
    list(APPEND isa_${isa} -mllvm -disable-vector-combine)
  endforeach()
endif()
message(STATUS "x86 kernels: ${EITRI_X86}")

set(eitri_sources "")
foreach(folder base backend jit dispatch ops tune api)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS src/${folder}/*.cpp)
  list(APPEND eitri_sources ${found})
endforeach()

# eitri_apply_isa(LIST): flags for the files of LIST that are named after an ISA; they leave the list where x86 is off.
macro(eitri_apply_isa list)
  foreach(file IN LISTS ${list})
    get_filename_component(name ${file} NAME)
    if(name MATCHES "_amx")
      set(isa amx)
    elseif(name MATCHES "_avx512bf16")
      set(isa avx512bf16)
    elseif(name MATCHES "_avx512vbmi")
      set(isa avx512vbmi)
    elseif(name MATCHES "_avx512")
      set(isa avx512)
    elseif(name MATCHES "_avx2")
      set(isa avx2)
    elseif(name MATCHES "^x86_")
      set(isa none)  # an x86 file for every x86 machine
    else()
      continue()
    endif()
    if(NOT EITRI_X86)
      list(REMOVE_ITEM ${list} ${file})
    elseif(NOT isa STREQUAL "none")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${isa_${isa}}")
    endif()
  endforeach()
endmacro()

eitri_apply_isa(eitri_sources)

foreach(file IN LISTS eitri_sources)
  if(file MATCHES "/x86_amx[^/]*$")
    file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR}/src ${file})
    set(twin ${CMAKE_BINARY_DIR}/generated/amx_emulated/${path})
    file(CONFIGURE OUTPUT ${twin} CONTENT "#define EITRI_AMX_EMULATED 1\n#include \"${path}\"\n")
    set_source_files_properties(${twin} PROPERTIES COMPILE_OPTIONS "${isa_amx_emulated}" OBJECT_DEPENDS ${file})
    list(APPEND eitri_sources ${twin})
  endif()
endforeach()

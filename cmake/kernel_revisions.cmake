# Run by EitriEmbed.cmake: writes OUTPUT, a C++ table of the revisions of kernels: for each folder of ROOT/src/ops, once for CPUs
# and once for GPUs, 12 hex digits of a hash over the folder's files for that kind of machine and over what they include from src/ops
# and src/device, the .cpp beside an included header too. Comments, indentation and empty lines do not count: a row is not stale because
# a sentence is better now. OUTPUT is only written when it changes; STAMP always is.
file(GLOB folders RELATIVE ${ROOT}/src/ops ${ROOT}/src/ops/*)
set(entries "")

# The includes of a file and its hash, kept in variables named after it.
macro(look_at path)
  if(NOT DEFINED "hash_${path}")
    file(READ ${ROOT}/src/${path} text)
    # A comment after code goes where no quote is before it on the line: a // inside a string is none.
    string(REGEX REPLACE "\n[ \t]*//[^\n]*" "\n" code "\n${text}")
    string(REGEX REPLACE "(\n[^\"'/\n]*)//[^\n]*" "\\1" code "${code}")
    string(REGEX REPLACE "[ \t]+\n" "\n" code "${code}")
    string(REGEX REPLACE "\n[ \t\n]+" "\n" code "${code}")
    string(SHA256 "hash_${path}" "${code}")
    set("includes_${path}" "")
    string(REGEX MATCHALL "(^|\n)[ \t]*#[ \t]*include[ \t]*\"(ops|device)/[^\"\n]*\"" lines "${text}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*\"([^\"]*)\".*" "\\1" included "${line}")
      if(EXISTS ${ROOT}/src/${included})
        list(APPEND "includes_${path}" ${included})
        string(REGEX REPLACE "\\.h$" ".cpp" beside "${included}")
        if(EXISTS ${ROOT}/src/${beside})
          list(APPEND "includes_${path}" ${beside})
        endif()
      endif()
    endforeach()
    list(REMOVE_DUPLICATES "includes_${path}")
  endif()
endmacro()

foreach(op IN LISTS folders)
  if(NOT IS_DIRECTORY ${ROOT}/src/ops/${op})
    continue()
  endif()
  foreach(machine cpu gpu)
    file(GLOB pending RELATIVE ${ROOT}/src ${ROOT}/src/ops/${op}/*.h ${ROOT}/src/ops/${op}/*.cpp ${ROOT}/src/ops/${op}/*.cuh)
    # Also of what is included: the host side of another machine's kernels.
    if(machine STREQUAL "cpu")
      set(others "\\.cuh$|/(simt|sm[0-9]|cdna|cublaslt)[^/]*$")
    else()
      set(others "/x86_[^/]*$|_(avx2|avx512|amx)[^/]*$")
    endif()
    set(seen "")
    list(FILTER pending EXCLUDE REGEX "${others}")
    while(pending)
      list(POP_FRONT pending path)
      if(path IN_LIST seen)
        continue()
      endif()
      list(APPEND seen ${path})
      look_at(${path})
      list(APPEND pending ${includes_${path}})
      list(FILTER pending EXCLUDE REGEX "${others}")
    endwhile()
    list(SORT seen)
    set(all "")
    foreach(path IN LISTS seen)
      string(APPEND all "${path} ${hash_${path}}\n")
    endforeach()
    string(SHA256 revision "${all}")
    string(SUBSTRING ${revision} 0 12 revision)
    string(APPEND entries "    {\"${op}\", \"${machine}\", \"${revision}\"},\n")
  endforeach()
endforeach()

set(text "// Made by cmake/kernel_revisions.cmake.\n#include \"dispatch/revision.h\"\n\nnamespace eitri {\n\n\
std::string_view kernel_revision(std::string_view op, Target target) {\n\
  struct Entry {\n    std::string_view op, machine, revision;\n  };\n\
  static constexpr Entry kEntries[] = {\n${entries}  };\n\
  const bool gpu = target == Target::any_gpu || target >= Target::sm_90a;\n\
  for (const Entry& e : kEntries)\n    if (e.op == op && e.machine == (gpu ? \"gpu\" : \"cpu\")) return e.revision;\n\
  return {};\n}\n\n}  // namespace eitri\n")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${text}" @ONLY)
file(TOUCH ${STAMP})

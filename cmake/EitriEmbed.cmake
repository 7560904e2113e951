# Embeds what GPU kernels are compiled from into the library, so that an installed library needs no source folder:
# cmake/embed_sources.cmake writes the texts as C++. It runs again when one of the texts changes, or one is added.
#
# Adds the generated file to eitri_sources; generated/share/src holds the same files, to be installed.
file(GLOB_RECURSE embed_roots CONFIGURE_DEPENDS src/device/*.h src/ops/*.cuh)
list(FILTER embed_roots EXCLUDE REGEX "/device/x86/")
set(embedded ${CMAKE_BINARY_DIR}/generated/embedded_texts.cpp)
set(embed_script ${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_sources.cmake)
# The roots' names go through a file: there may be more of them than a command line holds.
set(embed_list ${CMAKE_BINARY_DIR}/generated/embed_roots.txt)
list(JOIN embed_roots "\n" embed_text)
file(CONFIGURE OUTPUT ${embed_list} CONTENT "${embed_text}\n" @ONLY)
add_custom_command(OUTPUT ${embedded}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_CURRENT_SOURCE_DIR} -DLIST=${embed_list} -DOUTPUT=${embedded}
    -DCOPIES=${CMAKE_BINARY_DIR}/generated/share/src -P ${embed_script}
  DEPENDS ${embed_script} ${embed_list} ${embed_roots}
  DEPFILE ${embedded}.d
  COMMENT "Embedding the sources of GPU kernels"
  VERBATIM)
list(APPEND eitri_sources ${embedded})

# The revisions of kernels, which tuned rows name: made again when a file that kernels may be made of changes.
file(GLOB_RECURSE revision_roots CONFIGURE_DEPENDS src/ops/*.h src/ops/*.cpp src/ops/*.cuh src/device/*.h)
set(revisions ${CMAKE_BINARY_DIR}/generated/kernel_revisions.cpp)
set(revision_script ${CMAKE_CURRENT_SOURCE_DIR}/cmake/kernel_revisions.cmake)
add_custom_command(OUTPUT ${revisions}.stamp
  BYPRODUCTS ${revisions}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_CURRENT_SOURCE_DIR} -DOUTPUT=${revisions} -DSTAMP=${revisions}.stamp -P ${revision_script}
  DEPENDS ${revision_script} ${revision_roots}
  COMMENT "Hashing the sources of kernels"
  VERBATIM)
list(APPEND eitri_sources ${revisions} ${revisions}.stamp)

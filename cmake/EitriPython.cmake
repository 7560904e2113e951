# The extension module of python/: eitri/lib/_native.abi3.so, one binary for every Python from 3.9 on. A build folder gets a
# package that can be imported as it is, build/python/eitri: links to the sources beside the module.
find_package(Python 3.9 COMPONENTS Interpreter Development.Module)
if(NOT Python_Development.Module_FOUND)
  if(EITRI_BUILD_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "EITRI_BUILD_PYTHON=ON, but there is no Python.h (Debian: python3-dev)")
  endif()
  message(STATUS "Python extension: no Python.h, left out")
  return()
endif()

file(GLOB python_sources CONFIGURE_DEPENDS python/native/*.cpp)
add_library(eitri_python MODULE ${python_sources})
target_include_directories(eitri_python PRIVATE python/native)
target_include_directories(eitri_python SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
target_link_libraries(eitri_python PRIVATE eitri_core eitri_flags)
# The core is inside, and nothing of it gets out: other copies in the process (libeitri.so) never meet this one.
target_link_options(eitri_python PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/python_symbols.map)
set_target_properties(eitri_python PROPERTIES PREFIX "" OUTPUT_NAME _native SUFFIX .abi3.so
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/eitri/lib
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/python_symbols.map)

file(GLOB python_modules CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/python/eitri python/eitri/*)
list(REMOVE_ITEM python_modules __pycache__ lib)  # lib: beside the module
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/python/eitri/bin)
foreach(module IN LISTS python_modules)
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/python/eitri/${module} ${CMAKE_BINARY_DIR}/python/eitri/${module} SYMBOLIC)
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/python/eitri/lib)
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/python/eitri/lib/_native.pyi ${CMAKE_BINARY_DIR}/python/eitri/lib/_native.pyi SYMBOLIC)
file(CREATE_LINK ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/eitri ${CMAKE_BINARY_DIR}/python/eitri/bin/eitri SYMBOLIC)

install(TARGETS eitri_python LIBRARY DESTINATION lib COMPONENT python EXCLUDE_FROM_ALL)

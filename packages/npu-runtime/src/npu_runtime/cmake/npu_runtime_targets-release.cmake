#----------------------------------------------------------------
# Generated CMake target import file for configuration "Release".
#----------------------------------------------------------------

# Commands may need to know the format version.
set(CMAKE_IMPORT_FILE_VERSION 1)

# Import target "npu_runtime::npu_runtime" for configuration "Release"
set_property(TARGET npu_runtime::npu_runtime APPEND PROPERTY IMPORTED_CONFIGURATIONS RELEASE)
set_target_properties(npu_runtime::npu_runtime PROPERTIES
  IMPORTED_LOCATION_RELEASE "${_IMPORT_PREFIX}/lib/libnpu_runtime.so"
  IMPORTED_SONAME_RELEASE "libnpu_runtime.so"
  )

list(APPEND _cmake_import_check_targets npu_runtime::npu_runtime )
list(APPEND _cmake_import_check_files_for_npu_runtime::npu_runtime "${_IMPORT_PREFIX}/lib/libnpu_runtime.so" )

# Commands beyond this point should not need to know the version.
set(CMAKE_IMPORT_FILE_VERSION)

# npu_runtime's CMake package.
#
#   find_package(npu_runtime 0.1 REQUIRED COMPONENTS driver)   npu_runtime::driver, include/npu/driver.h
#   find_package(npu_runtime 0.1 REQUIRED)                     npu_runtime::npu_runtime as well, and torch

####### Expanded from @PACKAGE_INIT@ by configure_package_config_file() #######
####### Any changes to this file will be overwritten by the next CMake run ####
####### The input file was npu_runtimeConfig.cmake.in                            ########

get_filename_component(PACKAGE_PREFIX_DIR "${CMAKE_CURRENT_LIST_DIR}/../" ABSOLUTE)

macro(set_and_check _var _file)
  set(${_var} "${_file}")
  if(NOT EXISTS "${_file}")
    message(FATAL_ERROR "File or directory ${_file} referenced by variable ${_var} does not exist !")
  endif()
endmacro()

macro(check_required_components _NAME)
  foreach(comp ${${_NAME}_FIND_COMPONENTS})
    if(NOT ${_NAME}_${comp}_FOUND)
      if(${_NAME}_FIND_REQUIRED_${comp})
        set(${_NAME}_FOUND FALSE)
      endif()
    endif()
  endforeach()
endmacro()

####################################################################################

include("${CMAKE_CURRENT_LIST_DIR}/find_python_package.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/npu_runtime_driver_targets.cmake")
set(npu_runtime_driver_FOUND TRUE)

if(NOT "${npu_runtime_FIND_COMPONENTS}" STREQUAL "driver")
  include(CMakeFindDependencyMacro)
  find_python_package(torch TORCH_DIR)
  list(APPEND CMAKE_PREFIX_PATH "${TORCH_DIR}")
  find_dependency(Torch 2.13)
  include("${CMAKE_CURRENT_LIST_DIR}/npu_runtime_targets.cmake")
endif()
check_required_components(npu_runtime)

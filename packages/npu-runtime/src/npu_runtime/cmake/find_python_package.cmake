# find_python_package(<name> <out>): the folder of an installed Python package. It is found without
# importing it: importing torch takes a second and loads npu_runtime.
#
# Needs find_package(Python COMPONENTS Interpreter) before the call.
function(find_python_package name out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util; print(importlib.util.find_spec('${name}').submodule_search_locations[0])"
    OUTPUT_VARIABLE location OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${out} "${location}" PARENT_SCOPE)
endfunction()

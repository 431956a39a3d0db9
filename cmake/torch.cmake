# libtorch of the wheel in .venv (or of the Python given by SHARDPLAN_PYTHON).
set(SHARDPLAN_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has torch")
execute_process(
  COMMAND ${SHARDPLAN_PYTHON} -c "import torch; print(torch.utils.cmake_prefix_path)"
  OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR "no torch in ${SHARDPLAN_PYTHON}: run `make setup`, or configure with "
                      "-DSHARDPLAN_WITH_TORCH=OFF for everything that needs no torch")
endif()
list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
find_package(Torch REQUIRED)

# fwpkm_emulated: the program with its CUDA backend, whose kernels run on the CPU (tests/emulated). Of CUDA it takes the
# headers only. Not built unless asked for.
find_package(CUDAToolkit QUIET)
find_package(Boost 1.74 QUIET CONFIG COMPONENTS context)
if(NOT CUDAToolkit_FOUND OR NOT TARGET Boost::context)
  return()
endif()

set(FWPKM_EMULATED ${CMAKE_CURRENT_SOURCE_DIR}/tests/emulated)
set(FWPKM_TRANSLATED ${CMAKE_CURRENT_BINARY_DIR}/emulated)
add_executable(fwpkm_translate EXCLUDE_FROM_ALL ${FWPKM_EMULATED}/translate.cpp)
target_link_libraries(fwpkm_translate PRIVATE fwpkm_warnings)

file(GLOB_RECURSE FWPKM_KERNEL_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/src src/*.cu src/*.cuh)
foreach(FILE ${FWPKM_KERNEL_FILES})
  string(REGEX REPLACE "\\.cu$" ".cu.cpp" RESULT ${FWPKM_TRANSLATED}/${FILE})
  add_custom_command(OUTPUT ${RESULT}
    COMMAND fwpkm_translate ${CMAKE_CURRENT_SOURCE_DIR}/src/${FILE} ${RESULT}
    DEPENDS fwpkm_translate src/${FILE} VERBATIM)
  list(APPEND FWPKM_TRANSLATED_FILES ${RESULT})
endforeach()
add_custom_target(fwpkm_translated DEPENDS ${FWPKM_TRANSLATED_FILES})
set(FWPKM_TRANSLATED_SOURCES ${FWPKM_TRANSLATED_FILES})
list(FILTER FWPKM_TRANSLATED_SOURCES INCLUDE REGEX "\\.cu\\.cpp$")
# nvcc has seen what there is to warn of, and fuses products and sums.
set(FWPKM_AS_NVCC -w -O1 -fno-strict-aliasing)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND FWPKM_AS_NVCC -mfma)
endif()
set_source_files_properties(${FWPKM_TRANSLATED_SOURCES} PROPERTIES COMPILE_OPTIONS "${FWPKM_AS_NVCC}")

# What is compiled in another way with CUDA; all else comes from the library.
foreach(FILE ${FWPKM_SOURCES})
  file(STRINGS ${FILE} MENTIONED REGEX "FWPKM_CUDA" LIMIT_COUNT 1)
  if(MENTIONED AND NOT FILE MATCHES "_none.cpp$")
    list(APPEND FWPKM_WITH_CUDA ${FILE})
  endif()
endforeach()

add_executable(fwpkm_emulated EXCLUDE_FROM_ALL ${FWPKM_TRANSLATED_SOURCES} ${FWPKM_WITH_CUDA} ${FWPKM_EMULATED}/blas.cpp
  ${FWPKM_EMULATED}/emulator.cpp ${FWPKM_EMULATED}/runtime.cpp $<TARGET_OBJECTS:fwpkm>)
add_dependencies(fwpkm_emulated fwpkm_translated)
target_compile_definitions(fwpkm_emulated PRIVATE FWPKM_CUDA)
target_include_directories(fwpkm_emulated BEFORE PRIVATE ${FWPKM_TRANSLATED} ${FWPKM_EMULATED})
target_include_directories(fwpkm_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# Addresses of shared memory have 32 bits.
target_link_options(fwpkm_emulated PRIVATE -no-pie)
target_link_libraries(fwpkm_emulated PRIVATE fwpkm_core fwpkm_warnings CLI11::CLI11 Boost::context OpenMP::OpenMP_CXX
  DNNL::dnnl hwy::hwy)

function(add_kernel_test NAME ENVIRONMENT)
  add_test(NAME ${NAME} COMMAND ${ARGN} CONFIGURATIONS Emulated)
  set_tests_properties(${NAME} PROPERTIES LABELS kernels TIMEOUT 1200
    ENVIRONMENT "OMP_WAIT_POLICY=passive;OMP_NUM_THREADS=1;${ENVIRONMENT}")
endfunction()
add_kernel_test(Kernels.InBf16 "" fwpkm_emulated check --device cuda:bf16)
add_kernel_test(Kernels.InFloats "" fwpkm_emulated check --device cuda:f32)
# Threads in another order: whoever counts on theirs lacks a barrier.
add_kernel_test(Kernels.InBf16InAnyOrder "FWPKM_SHUFFLE=1" fwpkm_emulated check --device cuda:bf16)
foreach(NAME Train Session)
  string(TOLOWER ${NAME} SCRIPT)
  add_kernel_test(Kernels.${NAME} "" ${FWPKM_EMULATED}/${SCRIPT}_test.sh $<TARGET_FILE:fwpkm_emulated>
    ${CMAKE_CURRENT_SOURCE_DIR}/configs/recall.json)
endforeach()

# Installs the build into an empty folder, then builds and runs the examples against it.
#   cmake -D SOURCE=<repository> -D BINARY=<build folder> -D GENERATOR=... -D BUILD_TYPE=... -D COMPILER=<C++ compiler>
#         -D FLAGS=<C++ flags> -P package_test.cmake
cmake_minimum_required(VERSION 3.22)

set(work ${BINARY}/package_test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\ngave ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

unset(ENV{DESTDIR})
run(${CMAKE_COMMAND} --install ${BINARY} --prefix ${prefix})

# The package must work elsewhere: its targets may name nothing that is only here.
file(GLOB targets_files ${prefix}/*/cmake/fwpkm/fwpkmTargets*.cmake ${prefix}/*/*/cmake/fwpkm/fwpkmTargets*.cmake)
if(NOT targets_files)
  message(FATAL_ERROR "no CMake package was installed")
endif()
foreach(file IN LISTS targets_files)
  file(READ ${file} text)
  if(text MATCHES "[\":;](/[a-z][^\";>]*)")
    message(FATAL_ERROR "${file} names '${CMAKE_MATCH_1}', a place on this machine")
  endif()
endforeach()

foreach(example find_package memory session c)
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/${example} -B ${work}/${example} -G ${GENERATOR}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=${BUILD_TYPE} -D CMAKE_CXX_COMPILER=${COMPILER}
    -D CMAKE_C_COMPILER=${C_COMPILER} -D "CMAKE_CXX_FLAGS=${FLAGS} -Wall -Wextra -Werror"
    -D "CMAKE_C_FLAGS=${FLAGS} -Wall -Wextra -Werror")
  run(${CMAKE_COMMAND} --build ${work}/${example})
endforeach()

# A header of 54 bytes and two numbers.
set(header [[{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}]])
execute_process(COMMAND printf "\\066\\0\\0\\0\\0\\0\\0\\0%s01234567" "${header}"
  OUTPUT_FILE ${work}/two.safetensors COMMAND_ERROR_IS_FATAL ANY)

run(${work}/find_package/example ${SOURCE}/configs/paper/gdn.json ${work}/two.safetensors)
message("${output}")
if(NOT output MATCHES "^gdn: 112111296 parameters.*: 1 tensors, 8 bytes")
  message(FATAL_ERROR "the example printed something else")
endif()
run(${work}/memory/remember ${work}/pairs.safetensors)
message("${output}")
if(NOT output MATCHES "of 262144 slots written")
  message(FATAL_ERROR "the memory's example printed something else")
endif()
run(${prefix}/bin/fwpkm --version)
message("${output}")

# Running models needs one; nobody asks what it knows after two steps.
run(${prefix}/bin/fwpkm train --config ${SOURCE}/configs/recall.json --data builtin:recall --out ${work}/run
  --steps 2 --batch 1 --micro-batch 1 --seq 64 --valid-every 0)
string(REPEAT "fact du la otter.\n" 40 facts)
file(WRITE ${work}/facts.txt "fact ba ke heron.\n${facts}")
run(${work}/session/ask ${work}/run ${work}/facts.txt "ask ba ke?" ${work}/ask.session)
message("${output}")
if(NOT output MATCHES "^ask ba ke\\? [a-z]*\nwithout its memory: [a-z]*\n164 tokens read, [1-9][0-9]* slots differ")
  message(FATAL_ERROR "the session's example printed something else")
endif()
# The C example begins a session, then goes on with it; and with the one that C++ saved.
foreach(step "talk;0" "talk;16" "ask;164")
  list(GET step 0 name)
  list(GET step 1 before)
  run(${work}/c/go_on ${work}/run ${work}/${name}.session "fact mo li lantern. fact du la otter. fact ba ke heron. ask mo li?" 1)
  message("${output}")
  if(NOT output MATCHES "^${before} tokens were read before\nanswer: [a-z]*\n[0-9]+ slots changed; [0-9]+ tokens wait")
    message(FATAL_ERROR "the C example printed something else")
  endif()
endforeach()

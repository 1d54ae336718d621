# Defines the target cableway::cableway: find_package(cableway), then target_link_libraries(program cableway::cableway).
get_filename_component(_cableway_libraries "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_cableway_includes "${_cableway_libraries}/@INCLUDES@" ABSOLUTE)
if(NOT TARGET cableway::cableway)
    add_library(cableway::cableway SHARED IMPORTED)
    set_target_properties(cableway::cableway PROPERTIES
        IMPORTED_LOCATION "${_cableway_libraries}/libcableway.so"
        IMPORTED_SONAME "@SONAME@"
        INTERFACE_INCLUDE_DIRECTORIES "${_cableway_includes}")
endif()
unset(_cableway_libraries)
unset(_cableway_includes)

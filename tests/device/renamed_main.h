// Comes before each program's source: its main has another name there (-Dmain=...), which nothing
// declares. Some of them take no parameters; programs.c passes two all the same, which the calling
// conventions of CUDA's platforms allow.
#ifndef DEVICE_RENAMED_MAIN_H
#define DEVICE_RENAMED_MAIN_H

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#endif

// Rows of numbers as lines of text; abi.py has the same structure. Arrays belong to the caller.
#pragma once

struct pbg_lines {
  const char* heads;         // what the lines begin with, one behind the other
  const int64_t* head_ends;  // (rows): where each ends
  const float* numbers;      // (rows, columns)
  int64_t rows;
  int64_t columns;
  char* out;  // room for the heads, 51 bytes a number with the tab before it, and one a row
};

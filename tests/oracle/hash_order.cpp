// Walks a ska::flat_hash_map of PyTorch's own header after each insertion and removal. Reads lines "+ KEY" and "- KEY" and
// prints the keys in the table's order after each.

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <iostream>

int main() {
  ska::flat_hash_map<uint64_t, int> table;
  char action = 0;
  uint64_t key = 0;
  while (std::cin >> action >> key) {
    if (action == '+') {
      table[key] = 1;
    } else {
      table.erase(key);
    }
    for (const auto& entry : table) std::cout << entry.first << ' ';
    std::cout << '\n';
  }
}

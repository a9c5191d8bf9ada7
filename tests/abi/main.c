/* main.c - prints the contract in numbers: see listing.h. */
#include "listing.h"

int main(void)
{
    abi_list(stdout);
    return 0;
}

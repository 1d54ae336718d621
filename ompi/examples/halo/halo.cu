// The kernels of halo.c. A field of cells has one layer of ghosts on each side; x is the dimension whose cells are adjacent.
//
//   nvcc -ptx -o halo.ptx halo.cu

extern "C" __global__ void stencil(double *next, const double *now, unsigned nx, unsigned ny)
{
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
    if (x >= nx)
        return;
    unsigned long long row = nx + 2, plane = row * (ny + 2), at = (z + 1) * plane + (y + 1) * row + x + 1;
    double sum = now[at - 1] + now[at + 1] + now[at - row] + now[at + row] + now[at - plane] + now[at + plane];
    next[at] = now[at] + 0.1 * (sum - 6 * now[at]);
}

// Copies the cells of a face to `packed`, or from there: `outer` rows of `inner` cells, which begin at `first`.
extern "C" __global__ void face(double *packed, double *field, unsigned long long first, unsigned inner,
                                unsigned long long inner_stride, unsigned outer, unsigned long long outer_stride, int unpack)
{
    unsigned cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= inner * outer)
        return;
    unsigned long long at = first + cell % inner * inner_stride + cell / inner * outer_stride;
    if (unpack)
        field[at] = packed[cell];
    else
        packed[cell] = field[at];
}

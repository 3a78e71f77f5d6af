// A CUDA device made of host memory, for a torch that was built without CUDA: see simulated_cuda.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>

using at::Tensor, c10::DispatchKey, c10::DispatchKeySet, c10::IValue, c10::Storage;

namespace {

const c10::Device CUDA(c10::DeviceType::CUDA, 0), CPU(c10::DeviceType::CPU);

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return CUDA; }
  c10::Device getDevice() const override { return CUDA; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, CUDA); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, CUDA); }
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard)

// A generator on the CUDA device that wraps a CPU generator.
struct CudaGenerator final : c10::GeneratorImpl {
  at::Generator cpu;
  explicit CudaGenerator(at::Generator generator)
      : GeneratorImpl(CUDA, DispatchKeySet(DispatchKey::CUDA)), cpu(std::move(generator)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  CudaGenerator* clone_impl() const override { return new CudaGenerator(cpu.clone()); }
};

struct CudaHooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<CudaGenerator>(at::detail::createCPUGenerator());
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator generator = getNewGenerator(0);
    return generator;
  }
};

struct Count {
  int64_t launches = 0, waits = 0, bytes = 0;
};
std::mutex LOCK;
std::map<std::string, Count> COUNTS;     // by operator
std::set<std::string> UNCHECKED, VIEWS;  // operators that do not compare the devices of all arguments; that launch no kernel
const std::set<std::string> INDEXED = {"index.Tensor", "index.Tensor_out", "index_put_", "_index_put_impl_", "_unsafe_index.Tensor"};
const std::set<std::string> WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "equal", "repeat_interleave.Tensor", "bincount"};
const std::set<std::string> PRODUCTS = {"mm.out", "addmm.out", "bmm.out", "baddbmm.out", "addmv.out", "dot"};

void count(const std::string& name, bool waits) {
  std::lock_guard<std::mutex> hold(LOCK);
  COUNTS[name].launches += !VIEWS.count(name);
  COUNTS[name].waits += waits;
}

int64_t ALLOCATED = 0, PEAK = 0;  // bytes of the device that are in use now, and that were at most

// Keeps memory of the host alive; as memory of the device it is counted.
struct Held {
  Storage storage;
  int64_t bytes;
  Held(const Storage& storage, int64_t bytes) : storage(storage), bytes(bytes) {
    std::lock_guard<std::mutex> hold(LOCK);
    PEAK = std::max(PEAK, ALLOCATED += bytes);
  }
  ~Held() {
    std::lock_guard<std::mutex> hold(LOCK);
    ALLOCATED -= bytes;
  }
};

// The same bytes on another device.
Storage alias(const Storage& storage, c10::Device device) {
  const bool on_cpu = device == CPU;
  auto* held = new Held(storage, on_cpu ? 0 : storage.nbytes());
  c10::DataPtr data(const_cast<void*>(storage.data()), held, [](void* held) { delete static_cast<Held*>(held); }, device);
  return Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data), on_cpu ? c10::GetCPUAllocator() : nullptr, on_cpu);
}

// The tensors of one call as CPU tensors over the same memory, and its results back on the device.
class Call {
  std::map<c10::StorageImpl*, Storage> cpu_storage_;
  std::map<c10::StorageImpl*, Tensor> cuda_tensor_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;  // of CUDA and CPU

  static Tensor with_shape(Tensor tensor, const Tensor& like) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return tensor;
  }
  static Tensor make(Storage storage, DispatchKey key, const Tensor& like) {
    return with_shape(at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype()), like);
  }

 public:
  Tensor to_cpu(const Tensor& x) {
    if (!x.defined() || !x.is_cuda()) return x;
    auto [entry, is_new] = cpu_storage_.try_emplace(x.storage().unsafeGetStorageImpl());
    if (is_new) {
      entry->second = alias(x.storage(), CPU);
      cuda_tensor_[entry->second.unsafeGetStorageImpl()] = x;
    }
    pairs_.emplace_back(x, make(entry->second, DispatchKey::CPU, x));
    return pairs_.back().second;
  }

  Tensor to_cuda(const Tensor& y) {
    if (!y.defined() || !y.is_cpu()) return y;
    for (auto& [cuda, cpu] : pairs_)
      if (cpu.is_same(y)) return cuda;
    auto source = cuda_tensor_.find(y.storage().unsafeGetStorageImpl());
    if (source == cuda_tensor_.end()) {
      {
        std::lock_guard<std::mutex> hold(LOCK);
        COUNTS["allocation"].bytes += y.storage().nbytes();
      }
      return make(alias(y.storage(), CUDA), DispatchKey::CUDA, y);
    }
    const Tensor& x = source->second;  // y is a view of x; it is an inference tensor if x is
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, Storage(x.storage()), x.key_set(), y.dtype());
    return with_shape(view, y);
  }

  // Tensors that the operator resized in place.
  void write_back() {
    for (auto& [cuda, cpu] : pairs_) {
      if (cpu.storage().data() != cuda.storage().data() || cpu.storage().nbytes() != cuda.storage().nbytes()) {
        auto* storage = cuda.storage().unsafeGetStorageImpl();
        storage->set_nbytes(cpu.storage().nbytes());
        storage->set_data_ptr_noswap(std::move(alias(cpu.storage(), CUDA).unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
      }
      if (cpu.sizes() != cuda.sizes() || cpu.strides() != cuda.strides() || cpu.storage_offset() != cuda.storage_offset())
        with_shape(cuda, cpu);
    }
  }
};

// The argument with a function applied to each tensor in it.
template <class F>
IValue map_tensors(const IValue& value, F function) {
  if (value.isTensor()) return IValue(function(value.toTensor()));
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& x : value.toTensorList()) out.push_back(function(x));
    return out;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<Tensor>> out;
  for (std::optional<Tensor> x : value.toOptionalTensorList()) out.push_back(x ? std::make_optional(function(*x)) : x);
  return out;
}

// What kernels of CUDA refuse: tensors of mixed devices, and matrix products of integers.
void check_argument(const std::string& name, const std::string& argument, const Tensor& x) {
  const bool unchecked = UNCHECKED.count(name) && (x.dim() == 0 || (INDEXED.count(name) && argument == "indices"));
  TORCH_CHECK(!x.defined() || x.is_cuda() || unchecked, "Expected all tensors to be on the same device, but got ", argument,
      " is on ", x.device(), ", different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_", name, ")");
  TORCH_CHECK_NOT_IMPLEMENTED(!PRODUCTS.count(name) || !at::isIntegralType(x.scalar_type(), true), "\"", name,
      "_cuda\" not implemented for '", x.scalar_type(), "'");
}

void fallback(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& overload = schema.overload_name();
  const auto name = schema.name().substr(6) + (overload.empty() ? "" : "." + overload);  // without aten::
  const auto arguments = schema.arguments().size(), first = stack->size() - arguments;
  for (size_t i = 0; i < arguments; i++)
    map_tensors((*stack)[first + i], [&](const Tensor& x) {
      check_argument(name, schema.arguments()[i].name(), x);
      return x;
    });
  count(name, WAITS.count(name) > 0);
  Call call;
  for (size_t i = 0; i < arguments; i++) {
    auto& value = (*stack)[first + i];
    const bool takes_generator = schema.arguments()[i].type()->repr_str().find("Generator") != std::string::npos;
    if (value.isDevice() && value.toDevice().is_cuda()) {
      TORCH_CHECK(value.toDevice().index() < 1, "CUDA error: invalid device ordinal");
      value = IValue(CPU);
    } else if (value.isGenerator() || (value.isNone() && takes_generator)) {
      auto generator = value.isNone() ? at::detail::getCUDAHooks().getDefaultGenerator(0) : value.toGenerator();
      TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
          generator.device().type(), "'");
      value = IValue(static_cast<CudaGenerator*>(generator.unsafeGetGeneratorImpl())->cpu);
    } else {
      value = map_tensors(value, [&](const Tensor& x) { return call.to_cpu(x); });
    }
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  call.write_back();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& y) { return call.to_cuda(y); });
}

Tensor& copy_(Tensor& self, const Tensor& from, bool) {
  count(self.is_cpu() ? "copy to the host" : from.is_cpu() ? "copy to the device" : "copy_", self.is_cpu() || from.is_cpu());
  Call call;
  call.to_cpu(self).copy_(call.to_cpu(from));
  return self;
}

Tensor& set_(Tensor& self, Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(source);
  tensor->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor& set_whole(Tensor& self, Storage source) {
  return set_(self, source, 0, {c10::SymInt(source.nbytes() / self.itemsize())}, {c10::SymInt(1)});
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", copy_);
  m.impl("set_.source_Storage_storage_offset", set_);
  m.impl("set_.source_Storage", set_whole);
  // one kernel each on CUDA; without these lines torch would compose them of many
  for (auto name : {"native_layer_norm", "_fused_rms_norm", "scaled_dot_product_attention"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY(simulated_cuda, m) {
  // torch has made its hooks for a build without CUDA by now; these take their place
  static_assert(sizeof(CudaHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) CudaHooks;
  m.def("rules(str[] unchecked, str[] views) -> ()", [](std::vector<std::string> unchecked, std::vector<std::string> views) {
    UNCHECKED = {unchecked.begin(), unchecked.end()};
    VIEWS = {views.begin(), views.end()};
  });
  m.def("default_generator() -> Generator?", []() { return at::detail::getCUDAHooks().getDefaultGenerator(0); });
  m.def("memory(bool reset) -> int[]", [](bool reset) {
    std::lock_guard<std::mutex> hold(LOCK);
    if (reset) PEAK = ALLOCATED;
    return std::vector<int64_t>{ALLOCATED, PEAK};
  });
  m.def("counts() -> (str[], int[], int[], int[])", []() {
    std::lock_guard<std::mutex> hold(LOCK);
    std::tuple<std::vector<std::string>, std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>> out;
    for (auto& [name, counted] : std::exchange(COUNTS, {})) {
      std::get<0>(out).push_back(name);
      std::get<1>(out).push_back(counted.launches);
      std::get<2>(out).push_back(counted.waits);
      std::get<3>(out).push_back(counted.bytes);
    }
    return out;
  });
}

}  // namespace

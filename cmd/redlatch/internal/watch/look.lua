-- look.lua: read locks, as redlatch watch shows them. It writes nothing.
--
-- ARGV[1]   how much the script may do, in commands. It reads at least one key, whatever that takes
-- ARGV[2]   holders of a lock that are read, at most
-- ARGV[3]   waiters of a fair lock that are read, at most
-- ARGV[4]   leases of one reader that are read, at most
-- ARGV[5..] keys that may be locks. They are no KEYS: on a cluster they are on one node, but in many slots
--
-- returns   an element for each of the first keys. The caller sends the keys without one again. It is an error, or
--           false if the key is no lock, or a list: the fields of the hash, its cursor, its pttl, and
--           without a mode: the token, the queue's length, its head, the fair lock's clients, the line's
--           length, how many of the line listen
--           with a mode: for each field a list of the pttls of its leases
local budget, maxHolders, maxWaiters, maxLeases = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function prefixed(prefix, key)
  if string.find(key, '{', 1, true) then
    return prefix .. ':' .. key
  end
  return prefix .. ':{' .. key .. '}'
end

local function suffixed(key, suffix)
  if string.find(key, '{', 1, true) then
    return key .. ':' .. suffix
  end
  return '{' .. key .. '}:' .. suffix
end

local function call(...)
  budget = budget - 1
  return redis.pcall(...)
end

-- leasesOf returns the pttls of the leases of each field. Each hold of a reader has one.
local function leasesOf(key, fields)
  local all = {}
  for i = 1, math.min(#fields, 2 * maxHolders), 2 do
    local leases = {}
    local count = tonumber(fields[i + 1])
    local reads = count and string.sub(fields[i], -6) ~= ':write'
    if reads then
      for k = 1, math.min(count, maxLeases) do
        leases[k] = call('pttl', suffixed(key, fields[i] .. ':rwlock_timeout:' .. k))
      end
    end
    all[#all + 1] = leases
  end
  return all
end

local function read(key)
  -- Not HGETALL: the hash may be anybody's, of any size.
  local scanned = call('hscan', key, 0, 'count', maxHolders)
  if scanned.err then
    return scanned
  end
  local fields = scanned[2]
  budget = budget - #fields / 8 -- a long reply takes its time, too
  if #fields == 0 then
    return false
  end
  local hasMode = false
  for i = 1, #fields, 2 do
    local value = fields[i + 1]
    if fields[i] == 'mode' and (value == 'read' or value == 'write') then
      hasMode = true
    elseif not string.find(value, '^-?%d+$') then
      return false -- it is somebody else's
    end
  end
  local ttl = call('pttl', key)
  if hasMode then
    return {fields, scanned[1], ttl, leasesOf(key, fields)}
  end
  local queue = prefixed('redisson_lock_queue', key)
  local line = prefixed('redisson_unlock_latch', key) .. ':line'
  local length = call('llen', queue)
  local inLine = call('zcount', line, 0, '+inf')
  local listen = 0
  if inLine ~= 0 then
    listen = call('zcount', line, '-inf', '(0')
  end
  local head = {}
  if length ~= 0 then
    head = call('lrange', queue, 0, maxWaiters - 1)
    budget = budget - #head / 8
  end
  return {
    fields, scanned[1], ttl, call('get', prefixed('redisson_lock_token', key)), length, head,
    call('exists', prefixed('redlatch_lock_clients', key)), inLine, listen,
  }
end

local replies = {}
for i = 5, #ARGV do
  replies[i - 4] = read(ARGV[i])
  if budget <= 0 then
    break
  end
end
return replies
